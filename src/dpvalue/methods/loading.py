"""Reading saved tables and results back: what a file holds is checked, then made into what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpvalue.archive import Tensors
from dpvalue.arrays import Floats
from dpvalue.data.stored_encoding import encoding_from_json
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.methods.saved import check_saved
from dpvalue.models import KINDS, ModelFactory
from dpvalue.privacy.budget import Guarantee
from dpvalue.releasing.schedule import Schedule
from dpvalue.stored import read
from dpvalue.valuation.estimates import FIELDS, Estimate
from dpvalue.valuation.result import Result
from dpvalue.valuation.semivalues import Semivalue, semivalue
from dpvalue.valuation.table import PLAIN, Origin, Table


def load(path: str | Path, model: ModelFactory | None = None, preprocess: Any = None) -> Result | Table:
    """Read back what `Result.save` or `Table.save` wrote.

    Args:
        path: the file.
        model: the factory of a custom model, which files do not hold; its digest is checked when it is used.
        preprocess: the transformer of the run, if it had one, fitted to the public features of the run; needed to value
            on raw public rows. What preprocess="columns" and `dpvalue run` used is in the file.

    Returns:
        a `Result` if the file holds values, else a `Table`.

    Raises:
        DpvalueError: a file that is missing, damaged, of another format, or of another model.

    Example:
        >>> result.save("values.safetensors")  # `result` as in the example of `dpvalue.Result`
        >>> len(load("values.safetensors"))
        4
    """
    header, tensors = Table.archive.read(Path(path))
    table = table_of_parts(header, tensors, repr(str(path)), model, preprocess)
    if "result" not in header:
        return table
    stored = header["result"]
    kinds = tuple(_named(name) for name in stored["semivalues"])
    estimates = {
        kind.name: Estimate(**{field: tensors[f"{field}.{number}"].numpy() for field in FIELDS})
        for number, kind in enumerate(kinds)
    }
    engine = Local(dtype=stored["engine"]["dtype"])  # device, threads and memory are for the machine at hand
    return Result(table, kinds, estimates, stored["walks"], stored["converged"], None, engine)


def table_of_parts(
    header: dict[str, Any], tensors: Tensors, what: str, model: ModelFactory | None = None, preprocess: Any = None
) -> Table:
    """Return the table that a header and tensors hold, checked; `what` names them in errors."""
    try:
        method = check_saved(header, tensors)
    except DpvalueError as error:  # a header that this library did not write
        raise DpvalueError(f"{what} is not a whole dpvalue file: {error}") from None
    named = header["model"] in KINDS
    if named and model is not None:
        raise DpvalueError(f"model must not be given: the file was made with the model {header['model']!r}")
    schedule = Schedule(**header["schedule"])
    return Table(
        **{name: header[name] for name in PLAIN} | {"names": tuple(header["names"])},
        rows=tensors["rows"],
        noise_std=tensors["noise_std"].numpy(),
        guarantee=read(Guarantee, header["guarantee"]),
        initial=tensors["initial"],
        basis=tensors.get("basis"),
        model=header["model"] if named else model,
        encoding=encoding_from_json(header["encoding"], preprocess),
        origin=Origin(schedule, header["permutations"], header["expected_auc"], tensors["sizes"].numpy()),
        method=method,
    )


def _named(name: str) -> Semivalue:
    """The semivalue of this name; a custom one keeps its values, but its weights are not in the file."""
    try:
        return semivalue(name)
    except DpvalueError:
        return Semivalue(name, _missing_weights)


def _missing_weights(n: int) -> Floats:
    raise DpvalueError("the weights of a custom semivalue are not in the file: pass the Semivalue again to revalue")
