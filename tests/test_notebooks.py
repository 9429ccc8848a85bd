"""The notebooks run from top to bottom, with the values of their first cell replaced by small ones."""

import json
import os
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
SMALL_VALUES = {
    "supervised_steps": 2,
    "reinforcement_steps": 2,
    "tasks_per_step": 2,
    "evaluation_episodes": 4,
    "hidden_size": 32,
}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs_and_has_parameters(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert code[0]["metadata"]["tags"] == ["parameters"]
    assert {line.partition(" =")[0] for line in code[0]["source"]} <= SMALL_VALUES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    missing = "is not installed: make notebooks"
    nbclient = pytest.importorskip("nbclient", reason=f"nbclient {missing}")
    nbformat = pytest.importorskip("nbformat", reason=f"nbformat {missing}")
    pytest.importorskip("ipykernel", reason=f"ipykernel {missing}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    parameters = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    names = [line.partition(" =")[0] for line in parameters.source.splitlines()]
    parameters.source = "\n".join(f"{name} = {SMALL_VALUES[name]}" for name in names)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises the error of a cell
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("text/html" in output.get("data", {}) for output in outputs)  # the run as a table
    assert not any(output.output_type == "error" for output in outputs)
    assert list((tmp_path / "runs").glob("*/summary.json"))
