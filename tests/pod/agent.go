// Go's own HTTP client with its defaults. Prints the reply as it came.
package main

import (
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	body := `{"model": "m", "messages": [{"role": "user", "content": "hello from go"}]}`
	request, err := http.NewRequest("POST", "https://api.openai.com/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("content-type", "application/json")
	request.Header.Set("authorization", "Bearer sk-agent")
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer reply.Body.Close()
	if _, err := io.Copy(os.Stdout, reply.Body); err != nil {
		panic(err)
	}
}
