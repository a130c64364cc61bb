"""Flower as a pipe of bytes between a coordinator, whom nobody trusts, and a party's own agent.

At the coordinator: a SuperLink (`deploy.superlink`), each party's public key registered with it (`deploy.register`),
and `flwr run` of an app folder (`deploy.write_app`, `deploy.submit`) that names one function of installed code. It is
called with `pipe.Nodes`, asks, and keeps its own state: a run that was killed is submitted again, and goes on.

At a party: a SuperNode with `--isolation process` (`deploy.supernode`, kept running by `supervise.Kept`), and beside it
`serve.serve` with the party's `respond`. The coordinator's app bundle arrives at the SuperNode and stays there.

| question | module |
|---|---|
| what crosses | `pipe.py`; as Flower's records: `records.py` |
| the party's side | `serve.py`; what it uses of flwr's internals: `runtime.py`; what survives a kill: `memory.py` |
| the coordinator's side | `coordinate.py`, `app.py` (the ServerApp) |
| without Flower, in one process | `together.py` |
| keys and certificates, commands, processes | `keys.py`, `deploy.py`, `supervise.py` (with `tied.py`) |

Importing this package or `pipe.py`, `together.py`, `keys.py`, `deploy.py` and `supervise.py` does not import flwr.
"""
