"""Flower as a pipe of bytes between a coordinator, whom nobody trusts, and a party's own agent.

At the coordinator: a SuperLink (`deploy.superlink`), each party's public key registered with it (`deploy.register`),
and `flwr run` of an app folder (`deploy.write_app`, `deploy.submit`) that names one function of installed code. It is
called with `dpvalue.protocol.transport.Nodes`, asks, and keeps its own state: a run that was killed is submitted again,
and goes on.

At a party: a SuperNode with `--isolation process` (`deploy.supernode`, kept running by
`supervise.SupervisedProcess`), and beside it `serve.serve` with the party's `respond`. The coordinator's app bundle
arrives at the SuperNode and stays there.

| question | module |
|---|---|
| questions and answers as Flower's records, and the task that was taken | `records.py` |
| the party's side | `serve.py`; what it uses of flwr's internals: `runtime.py` |
| the coordinator's side | `app.py` (the ServerApp) |
| commands, keys and certificates; processes | `deploy.py`; `supervise.py` |

Importing this package, `deploy.py` or `supervise.py` does not import flwr.
"""
