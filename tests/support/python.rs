//! Programs in Python, with packages of their own: installed once into a virtual environment below the target directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::tools::program;

/// `tests/tools/httpx_client.py`.
pub fn httpx_client() -> Command {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    let mut command = Command::new(PYTHON.get_or_init(install));
    command.arg(tools().join("httpx_client.py"));
    command
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools")
}

/// The interpreter of an environment that has what `requirements.txt` lists.
fn install() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    std::fs::create_dir_all(&place).unwrap();
    // Another test process may want the same.
    let lock = File::create(place.join("lock")).unwrap();
    lock.lock().unwrap();
    let (environment, python, installed) = (place.join("venv"), place.join("venv/bin/python3"), place.join("installed"));
    let wanted = std::fs::read(tools().join("requirements.txt")).unwrap();
    if std::fs::read(&installed).is_ok_and(|listed| listed == wanted) {
        return python;
    }
    eprintln!("installing the Python packages of tests/tools/requirements.txt");
    let mut venv = Command::new(program("python3", "python3-venv"));
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    assert!(venv.status().unwrap().success(), "no virtual environment could be made: apt-get install python3-venv");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(tools().join("requirements.txt"));
    let status = pip.status().unwrap();
    assert!(status.success(), "{pip:?}: {status}");
    std::fs::write(installed, wanted).unwrap();
    python
}
