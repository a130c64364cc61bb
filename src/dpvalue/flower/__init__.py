"""Flower as the transport of bytes between an untrusted coordinator and party agents.

At the coordinator: a SuperLink (`deploy.superlink`), each party's public key registered with it (`deploy.register`),
and `flwr run` of an app folder (`deploy.write_app`, `deploy.submit`) that names one function of installed code. The
function gets `dpvalue.protocol.transport.Nodes` and stores its own state, so a run that was killed resumes when it is
submitted again.

At a party: a SuperNode with `--isolation process` (`deploy.supernode`, kept running by
`supervise.SupervisedProcess`), and beside it `serve.serve` with the party's `respond`. The coordinator's app bundle
arrives at the SuperNode and stays there.

| question | module |
|---|---|
| questions and replies as Flower's records, and the unfinished task | `records.py` |
| the party's side | `serve.py`; what it uses of flwr's internals: `runtime.py` |
| the coordinator's side | `app.py` (the ServerApp) |
| commands, keys and certificates; processes | `deploy.py`; `supervise.py` |

Importing this package, `deploy.py` or `supervise.py` does not import flwr.
"""
