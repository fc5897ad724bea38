//! Python: found where it is, and furnished with the OpenAI client in a directory of our own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::TaskError;
use crate::process;
use crate::workspace;

/// The OpenAI client that the tests talk through.
const OPENAI: &str = "3.57.0";

const MISSING: &str = "Python 3.10 or later is needed and `python3` is none \
    (Debian, Ubuntu: apt install python3 python3-pip)";

const MISSING_PIP: &str = "Python's pip is needed and `python3 -m pip` does not run \
    (Debian, Ubuntu: apt install python3-pip)";

/// A Python that can import the OpenAI client.
pub(crate) struct Furnished {
    pub(crate) python: PathBuf,
    /// Where its packages are, where it does not know that itself.
    pub(crate) packages: Option<PathBuf>,
}

/// `cargo xtask python`: prepares a Python and tells where it is.
///
/// # Errors
/// See [`furnished`].
pub(crate) fn run() -> Result<(), TaskError> {
    let furnished = furnished()?;
    println!("{}", furnished.python.display());
    if let Some(packages) = &furnished.packages {
        println!("{}", packages.display());
    }
    Ok(())
}

/// The `python3` of the system.
///
/// # Errors
/// There is none, or it is too old.
pub(crate) fn system() -> Result<PathBuf, TaskError> {
    let asked = process::ask(
        Command::new("python3")
            .args(["-c", "import sys; sys.version_info >= (3, 10) or sys.exit(1); print(sys.executable)"]),
    );
    match asked {
        Ok(Some(path)) if !path.is_empty() => Ok(path.into()),
        _ => Err(TaskError::Missing(MISSING.into())),
    }
}

/// Fails early, with a hint, where a Python has no pip.
///
/// # Errors
/// It has none.
pub(crate) fn require_pip(python: &Path) -> Result<(), TaskError> {
    match process::ask(Command::new(python).args(["-m", "pip", "--version"]))? {
        Some(_) => Ok(()),
        None => Err(TaskError::Missing(MISSING_PIP.into())),
    }
}

/// A Python with the OpenAI client: in a virtual environment, or, where the system's Python cannot make one
/// (Debian without python3-venv), the system's Python with a directory of packages.
///
/// # Errors
/// No Python, no pip, or the client cannot be installed.
pub(crate) fn furnished() -> Result<Furnished, TaskError> {
    let system = system()?;
    let environment = workspace::target().join("python");
    let inside = Furnished { python: environment.join("bin/python"), packages: None };
    let beside =
        Furnished { python: system.clone(), packages: Some(workspace::target().join("python-packages")) };
    for ready in [inside, beside] {
        if ready.has_client() {
            return Ok(ready);
        }
    }
    if let Some(made) = in_environment(&system, &environment) {
        return made;
    }
    in_directory(system)
}

/// `None` where no environment can be made.
fn in_environment(system: &Path, environment: &Path) -> Option<Result<Furnished, TaskError>> {
    let made = process::ask(Command::new(system).args(["-m", "venv", "--clear"]).arg(environment));
    if !matches!(made, Ok(Some(_))) {
        eprintln!("python3 makes no virtual environment here; a directory of packages will do");
        return None;
    }
    let furnished = Furnished { python: environment.join("bin/python"), packages: None };
    Some(furnished.install(&[]))
}

fn in_directory(system: PathBuf) -> Result<Furnished, TaskError> {
    require_pip(&system)?;
    let packages = workspace::target().join("python-packages");
    let flags = ["--upgrade".into(), "--target".into(), packages.clone().into_os_string()];
    Furnished { python: system, packages: Some(packages) }.install(&flags)
}

impl Furnished {
    fn install(self, flags: &[OsString]) -> Result<Self, TaskError> {
        let mut pip = Command::new(&self.python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        process::run_aside(pip.args(flags).arg(format!("openai=={OPENAI}")))?;
        if self.has_client() {
            Ok(self)
        } else {
            Err(TaskError::Missing(format!("pip installed openai {OPENAI}, but Python cannot import it")))
        }
    }

    fn has_client(&self) -> bool {
        let mut python = Command::new(&self.python);
        python.args(["-c", "import openai; print(openai.__version__)"]);
        self.equip(&mut python);
        matches!(process::ask(&mut python), Ok(Some(version)) if version == OPENAI)
    }

    /// Gives a command the environment in which Python finds the packages.
    pub(crate) fn equip(&self, command: &mut Command) {
        if let Some(packages) = &self.packages {
            command.env("PYTHONPATH", packages);
        }
    }
}
