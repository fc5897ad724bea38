//! The direction of dependencies between the rooms of `ARCHITECTURE.md`, checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::error::TaskError;
use crate::workspace;

/// What each room may depend on. Test dependencies are free, and `kvsp-testkit` is for them alone.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("kvsp-hash", &[]),
    ("kvsp-buffer", &[]),
    ("kvsp-proto", &["kvsp-hash"]),
    ("kvsp-openai", &[]),
    ("kvsp-core", &["kvsp-proto"]),
    ("kvsp-store", &["kvsp-proto", "kvsp-buffer"]),
    ("kvsp-client", &["kvsp-proto", "kvsp-buffer"]),
    ("kvsp-engine", &["kvsp-proto"]),
    ("kvsp-llama", &["kvsp-proto", "kvsp-engine"]),
    ("kvsp-net", &["kvsp-proto", "kvsp-core", "kvsp-buffer"]),
    ("kvsp-blocks", &["kvsp-proto", "kvsp-core", "kvsp-store", "kvsp-net", "kvsp-client", "kvsp-buffer"]),
    ("kvsp-index", &["kvsp-proto", "kvsp-core", "kvsp-store", "kvsp-net"]),
    ("kvsp-holder", &["kvsp-proto", "kvsp-core", "kvsp-store", "kvsp-net", "kvsp-client", "kvsp-blocks"]),
    ("kvsp-controller", &["kvsp-proto", "kvsp-core", "kvsp-store", "kvsp-net", "kvsp-client"]),
    (
        "kvsp-agent",
        &[
            "kvsp-proto",
            "kvsp-core",
            "kvsp-store",
            "kvsp-net",
            "kvsp-client",
            "kvsp-blocks",
            "kvsp-engine",
            "kvsp-openai",
            "kvsp-buffer",
        ],
    ),
    ("kvsp-gateway", &["kvsp-proto", "kvsp-core", "kvsp-net", "kvsp-client", "kvsp-engine", "kvsp-openai"]),
    (
        "kvsp",
        &[
            "kvsp-proto",
            "kvsp-core",
            "kvsp-store",
            "kvsp-net",
            "kvsp-client",
            "kvsp-blocks",
            "kvsp-index",
            "kvsp-holder",
            "kvsp-controller",
            "kvsp-agent",
            "kvsp-gateway",
            "kvsp-engine",
            "kvsp-llama",
            "kvsp-openai",
            "kvsp-buffer",
            "kvsp-hash",
        ],
    ),
    ("kvsp-testkit", &["kvsp-proto", "kvsp-net", "kvsp-client"]),
];

/// Compares the manifests of all rooms with [`ALLOWED`], and says on stderr what is wrong. Whether all is well.
///
/// # Errors
/// A manifest cannot be read.
pub(crate) fn check() -> Result<bool, TaskError> {
    let crates = workspace::root().join("crates");
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| TaskError::File { path, source }
    };
    let mut wrong = BTreeSet::new();
    for entry in fs::read_dir(&crates).map_err(failed(&crates))? {
        let manifest = entry.map_err(failed(&crates))?.path().join("Cargo.toml");
        if manifest.exists() {
            wrong.extend(violations(&fs::read_to_string(&manifest).map_err(failed(&manifest))?));
        }
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    Ok(wrong.is_empty())
}

/// What is wrong with one manifest.
fn violations(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut name = "";
    let mut dependencies = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim();
            // [dependencies.kvsp-x] is a dependency, too.
            dependencies.extend(section.trim_matches(['[', ']']).strip_prefix("dependencies."));
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        match section {
            "[package]" if key.trim() == "name" => name = value.trim().trim_matches('"'),
            "[dependencies]" => dependencies.push(key.trim().split('.').next().unwrap_or_default()),
            _ => {}
        }
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(room, _)| *room == name) else {
        return vec![format!(
            "{name} is no room of ARCHITECTURE.md: add it there and in xtask/src/arrows.rs"
        )];
    };
    dependencies
        .into_iter()
        .filter(|dependency| dependency.starts_with("kvsp") && !allowed.contains(dependency))
        .map(|dependency| format!("{name} must not depend on {dependency}: see ARCHITECTURE.md"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_in_the_wrong_direction_is_found() {
        let manifest = |dependencies: &str| {
            format!("[package]\nname = \"kvsp-core\"\nversion.workspace = true\n\n{dependencies}\n")
        };
        let fine = "[dependencies]\nkvsp-proto.workspace = true\nserde = \"1\"\n\n[dev-dependencies]\nkvsp-testkit = {}";
        assert!(violations(&manifest(fine)).is_empty());
        for wrong in [
            "[dependencies]\nkvsp-net.workspace = true",
            "[dependencies]\nkvsp-net = { path = \"../kvsp-net\" }",
            "[dependencies.kvsp-net]\npath = \"../kvsp-net\"",
        ] {
            assert_eq!(violations(&manifest(wrong)).len(), 1, "{wrong}");
        }
        assert_eq!(violations("[package]\nname = \"kvsp-attic\"\n").len(), 1);
    }

    #[test]
    fn no_two_rooms_depend_on_each_other() {
        for (room, allowed) in ALLOWED {
            for other in allowed {
                let (_, back) = ALLOWED.iter().find(|(name, _)| name == other).unwrap();
                assert!(!back.contains(&room), "{room} and {other}");
            }
        }
    }
}
