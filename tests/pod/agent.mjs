// Node's two ways to ask, with their defaults: `node agent.mjs fetch|https`. Prints the reply's text.
import https from "node:https";

const url = "https://api.openai.com/v1/chat/completions";
const way = process.argv[2];
const body = JSON.stringify({ model: "m", messages: [{ role: "user", content: `hello from node ${way}` }] });
const headers = { "content-type": "application/json", authorization: "Bearer sk-agent" };
const show = (text) => console.log(JSON.parse(text).choices[0].message.content);

if (way === "fetch") {
  show(await (await fetch(url, { method: "POST", headers, body })).text());
} else {
  const request = https.request(url, { method: "POST", headers }, (reply) => {
    let text = "";
    reply.on("data", (piece) => (text += piece));
    reply.on("end", () => show(text));
  });
  request.end(body);
}
