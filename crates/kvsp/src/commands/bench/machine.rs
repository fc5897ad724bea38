//! What the figures were measured on.

use serde_json::{Value, json};

/// The machine, as far as its figures depend on it.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    /// Cores that this process may use.
    pub(super) cores: usize,
    /// The CPU's name.
    pub(super) cpu_model: String,
    load: Option<f64>,
}

impl Machine {
    /// This machine; what it does not tell is `unknown`.
    pub(super) fn this() -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            load: load.split(' ').next().and_then(|one| one.parse().ok()),
        }
    }

    /// The load average of the last minute before the run, in words.
    pub(super) fn load(&self) -> String {
        self.load.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"))
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "cores": self.cores, "cpu_model": self.cpu_model, "load_1m": self.load })
    }
}
