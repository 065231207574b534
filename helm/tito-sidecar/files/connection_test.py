"""What `helm test` runs in the cluster, with the image's Python: is all up, and what does it refuse?"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request

failed = []


def ask(url, body=None, token=None, ca=None):
    """Status and body of a call; (None, reason) if there was no answer."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data=body and json.dumps(body).encode(), headers=headers)
    context = ssl.create_default_context(cafile=ca) if ca else None
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return None, str(error).encode()


def expect(what, good, found):
    """Print a line; remember what is not as expected."""
    print("ok  " if good else "FAIL", what, "" if good else f": {found}")
    if not good:
        failed.append(what)


def expect_status(what, status, found):
    """The body, if the status is as expected."""
    expect(what, found[0] == status, f"{found[0]} and not {status}, {found[1][:300]!r}")
    return found[1] if found[0] == status else None


def test_webhook(url, ca):
    """It answers over TLS that the API server's bundle proves, and leaves a pod alone that did not ask."""
    expect_status("webhook is healthy, and its certificate is trusted", 200, ask(f"{url}/health", ca=ca))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}]}
    asked = {"uid": "helm-test", "operation": "CREATE", "namespace": "default", "object": pod}
    asked["kind"] = {"group": "", "version": "v1", "kind": "Pod"}
    asked["resource"] = {"group": "", "version": "v1", "resource": "pods"}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    body = expect_status("webhook answers a review", 200, ask(f"{url}/mutate", review, ca=ca))
    if body is not None:
        answer = json.loads(body)["response"]
        alone = answer["uid"] == "helm-test" and answer["allowed"] and not answer.get("patch")
        expect("webhook leaves a pod alone that did not ask", alone, answer)


def test_gateway(data, control, token):
    """It is ready, and opens neither plane to strangers."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    expect_status("agents without a session key are refused", 401, ask(f"{data}/v1/chat/completions", chat))
    expect_status("gateway is ready, with its store and engine", 200, ask(f"{control}/ready?engine=1"))
    private = f"{control}/integration/capabilities"
    expect_status("the control plane refuses who has no token", 401, ask(private))
    expect_status("the control plane answers who has it", 200, ask(private, token=token))


if "WEBHOOK_URL" in os.environ:
    test_webhook(os.environ["WEBHOOK_URL"], os.environ["WEBHOOK_CA"])
if "GATEWAY_URL" in os.environ:
    test_gateway(os.environ["GATEWAY_URL"], os.environ["CONTROL_URL"], os.environ["CONTROL_TOKEN"])
sys.exit(1 if failed else 0)
