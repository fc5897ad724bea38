//! All that was measured, as a table or as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::goal::Goal;
use super::machine::Machine;
use super::row::Row;

/// A figure with its spread.
#[derive(Debug, Clone)]
pub(super) struct Figure {
    /// The median.
    pub(super) row: Row,
    /// The lowest of all rounds.
    pub(super) min: f64,
    /// The highest.
    pub(super) max: f64,
    /// What it should be.
    pub(super) goal: Option<Goal>,
}

impl Figure {
    /// The figure with what it should be beside it.
    pub(super) fn should_be(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }
}

impl From<Row> for Figure {
    /// A figure that was measured once.
    fn from(row: Row) -> Self {
        Self { min: row.value, max: row.value, row, goal: None }
    }
}

/// One bench.
#[derive(Debug)]
pub(super) struct Bench {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// What was measured.
    pub(super) figures: Vec<Figure>,
    /// How.
    pub(super) notes: Vec<String>,
}

/// All benches of a run.
#[derive(Debug)]
pub(super) struct Report {
    machine: Machine,
    benches: Vec<Bench>,
}

impl Report {
    pub(super) const fn new(machine: Machine) -> Self {
        Self { machine, benches: Vec::new() }
    }

    pub(super) fn add(&mut self, bench: Bench) {
        self.benches.push(bench);
    }

    /// The table.
    pub(super) fn to_text(&self) -> String {
        let machine = &self.machine;
        let mut text = format!("{} cores, {}, load {}", machine.cores, machine.cpu_model, machine.load());
        let names = self.benches.iter().flat_map(|bench| &bench.figures).map(|figure| figure.row.name.len());
        let width = names.max().unwrap_or(0) + 2;
        for bench in &self.benches {
            // Writing to a string does not fail.
            let _ =
                write!(text, "\n\n{:<width$} {:>10} {:>10} {:>10}  unit", bench.name, "median", "min", "max");
            for Figure { row, min, max, goal } in &bench.figures {
                let numbers =
                    [row.value, *min, *max].map(|number| format!("{:>10}", short(number))).join(" ");
                let _ = write!(text, "\n  {:<1$} {numbers}  {2}", row.name, width - 2, row.unit);
                if let Some(goal) = goal {
                    let _ = write!(text, "  {}", goal.to_text(row.value));
                }
            }
            for note in &bench.notes {
                let _ = write!(text, "\n  - {note}");
            }
        }
        text
    }

    /// All figures and notes.
    pub(super) fn to_json(&self) -> Value {
        let benches: Vec<Value> = self
            .benches
            .iter()
            .map(|bench| {
                let rows: Vec<Value> = bench.figures.iter().map(Figure::to_json).collect();
                json!({ "name": bench.name, "rows": rows, "notes": bench.notes })
            })
            .collect();
        json!({ "benches": benches, "machine": self.machine.to_json() })
    }
}

impl Figure {
    fn to_json(&self) -> Value {
        let mut row = json!({
            "name": self.row.name,
            "value": self.row.value,
            "unit": self.row.unit,
            "min": self.min,
            "max": self.max,
        });
        if let Some(goal) = self.goal {
            row["goal"] = goal.to_json(self.row.value);
        }
        row
    }
}

/// A number in at most ten characters: 4 digits and k, M or G.
fn short(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, "  "),
    };
    let digits = match scaled.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        let cases = [
            (0.5, "0.500  "),
            (9_999.0, "9999  "),
            (12_345.0, "12.35 k"),
            (1_234_567.0, "1.235 M"),
            (2e9, "2.000 G"),
        ];
        for (value, want) in cases {
            assert_eq!(short(value), want);
        }
    }
}
