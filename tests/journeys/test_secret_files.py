"""Keys and secrets are for their owner alone: made so, and refused where others can read them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.cli.party import own_secret
from dpvalue.flower.deploy import write_authority, write_node_key
from dpvalue.flower.records import Memory, StoredTask
from dpvalue.protocol.archive import Key
from dpvalue.storage import require_secret, write_secret
from tests.federation import write_files


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, (done.output, done.exception)
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_all_secrets_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    Key.new().save(tmp_path / "key")
    write_node_key(tmp_path / "node")
    own_secret(tmp_path / "secret")
    Memory(tmp_path / "task").keep(StoredTask("token"))
    dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(1.0), "me")
    server = write_authority(tmp_path / "link", "127.0.0.1").key
    for path in (*(tmp_path / name for name in ("key", "node", "secret", "task", "ledger")), server):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o601, 0o777])
def test_a_key_that_others_can_read_is_refused_with_what_to_type(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "my.key"
    Key.new().save(path)
    path.chmod(mode)
    said = refused("key", "show", path)
    assert said == f"error: the key {str(path)!r} is readable by others (mode {mode:04o}): run chmod 600 {path}\n"
    path.chmod(0o600)
    Key.read(path)
    path.chmod(0o400)
    Key.read(path)


def test_of_a_link_the_key_that_it_leads_to_counts(tmp_path: Path) -> None:
    key = Key.new()
    key.save(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert Key.read(tmp_path / "link") == key
    (tmp_path / "real").chmod(0o644)
    with pytest.raises(dpv.DpvalueError, match="is readable by others"):
        Key.read(tmp_path / "link")
    with pytest.raises(dpv.DpvalueError, match="already exists"):
        key.save(tmp_path / "link")
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(dpv.DpvalueError, match="already exists"):
        key.save(tmp_path / "dangling")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(dpv.DpvalueError, match=r"cannot be read: No such file"):
        require_secret(tmp_path / "dangling")
    with pytest.raises(dpv.DpvalueError, match=r"^the file .* cannot be locked|cannot be written|cannot be locked"):
        write_secret(tmp_path / "nowhere" / "key", b"")


def test_every_command_that_takes_a_secret_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = write_files(tmp_path, {"north": 90, "south": 60})
    files.job().save("study.job")
    files.ledger("north")
    write_node_key(Path("north.node"))
    Key.new().save("north.key")
    Path("policy.toml").write_text("unsigned = true\n")
    CliRunner().invoke(app, ["flower", "new", "link"])
    (tmp_path / "link" / "server.key").chmod(0o640)
    known = ("--superlink", "127.0.0.1:1", "--ca", "link/ca.crt", "--name", "north", "--node-key", "north.node")
    serve = ("party", "serve", "north.csv", *known, "--ledger", "north.ledger", "--policy", "policy.toml")
    own_secret(Path("secret"))
    Path("serve").mkdir()
    Path("secret").rename("serve/secret")
    Path("serve/secret").chmod(0o604)
    assert "serve/secret' is readable by others" in refused(*serve)
    Path("north.node").chmod(0o644)
    assert "north.node' is readable by others" in refused(*serve)
    Path("north.key").chmod(0o644)
    for arguments in (
        ("key", "show", "north.key"),
        ("job", "--test", "public.csv", "--target", "label", "--sizes", "9,6", "--out", "x", "--key", "north.key"),
        (
            "party",
            "answer",
            "study.job",
            "north.csv",
            "--name",
            "north",
            "--ledger",
            "north.ledger",
            "--key",
            "north.key",
        ),
        ("value", "study.job", "--key", "north.key"),
        (*serve, "--key", "north.key"),
    ):
        assert "north.key' is readable by others (mode 0644): run chmod 600 north.key" in refused(*arguments), arguments
    assert "link/server.key' is readable by others" in refused("flower", "link", "link")
    assert not Path("results").exists()
    assert files.ledger("north").entries() == []
