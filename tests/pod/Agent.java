// Java's own HTTP client with its defaults, run as `java Agent.java`. Prints the reply as it came.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public class Agent {
    public static void main(String[] arguments) throws Exception {
        String body = "{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"hello from java\"}]}";
        HttpRequest request = HttpRequest.newBuilder(URI.create("https://api.openai.com/v1/chat/completions"))
                .header("content-type", "application/json")
                .header("authorization", "Bearer sk-agent")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
