//! The report: a table, `summary.json`, and `raw.csv` with every pair.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::json;

use crate::harness::{Clock, Estimate, Pairs};

/// All figures so far.
#[derive(Debug, Default)]
pub struct Report {
    metrics: Vec<Metric>,
    raw: String,
    /// Whether this is a quick run, whose figures are not compared with budgets.
    quick: bool,
}

#[derive(Debug)]
struct Metric {
    name: String,
    unit: &'static str,
    estimate: Estimate,
    budget: Option<f64>,
    /// Medians of both sides, which are only displayed.
    sides: Option<(f64, f64, &'static str)>,
}

impl Metric {
    /// Whether the budget is met. It is missed only if the whole interval is above the budget.
    fn is_ok(&self) -> bool {
        self.budget.is_none_or(|budget| self.estimate.low <= budget)
    }
}

impl Report {
    pub fn new(quick: bool) -> Self {
        Self { quick, ..Self::default() }
    }

    /// Overhead in microseconds per run.
    pub fn more_us(&mut self, name: &str, pairs: &Pairs, clock: Clock, budget: Option<f64>) {
        self.pairs(name, pairs, clock, "us", budget, |bare, ours| (ours - bare) / 1e3);
    }

    /// Overhead in nanoseconds per run.
    pub fn more_ns(&mut self, name: &str, pairs: &Pairs, clock: Clock, budget: Option<f64>) {
        self.pairs(name, pairs, clock, "ns", budget, |bare, ours| ours - bare);
    }

    /// Overhead in percent of the bare call.
    pub fn more_percent(&mut self, name: &str, pairs: &Pairs, clock: Clock, budget: Option<f64>) {
        self.pairs(name, pairs, clock, "%", budget, |bare, ours| 100.0 * (ours / bare - 1.0));
    }

    /// Ratio to the bare call.
    pub fn ratio(&mut self, name: &str, pairs: &Pairs, clock: Clock, budget: Option<f64>) {
        self.pairs(name, pairs, clock, "x", budget, |bare, ours| ours / bare);
    }

    /// A counted value.
    pub fn counted(&mut self, name: &str, unit: &'static str, values: &[f64], budget: Option<f64>) {
        for (idx, value) in values.iter().enumerate() {
            let _written = writeln!(self.raw, "\"{name}\",{unit},{idx},,{value}");
        }
        self.push(Metric { name: name.to_owned(), unit, estimate: Estimate::of(values.iter().copied()), budget, sides: None });
    }

    fn pairs(&mut self, name: &str, pairs: &Pairs, clock: Clock, unit: &'static str, budget: Option<f64>, more: impl Fn(f64, f64) -> f64) {
        let name = match clock {
            Clock::Wall => format!("{name}, wall time"),
            Clock::Cpu => format!("{name}, processor time"),
        };
        let of_both: Vec<(f64, f64)> = pairs.0.iter().map(|(bare, ours)| (bare.get(clock), ours.get(clock))).collect();
        for (idx, (bare, ours)) in of_both.iter().enumerate() {
            let _written = writeln!(self.raw, "\"{name}\",ns per run,{idx},{bare:.1},{ours:.1}");
        }
        let median = |side: fn(&(f64, f64)) -> f64| Estimate::of(of_both.iter().map(side)).median;
        let (bare, ours) = (median(|pair| pair.0), median(|pair| pair.1));
        let sides = if unit == "ns" { (bare, ours, "ns") } else { (bare / 1e3, ours / 1e3, "us") };
        let estimate = Estimate::of(of_both.iter().map(|(bare, ours)| more(*bare, *ours)));
        self.push(Metric { name, unit, estimate, budget, sides: Some(sides) });
    }

    fn push(&mut self, metric: Metric) {
        if self.metrics.is_empty() {
            println!("{:<62} {:>13} {:>13} {:>13}   {:<20} budget", "", "bare", "ours", "more", "95 % interval");
        }
        let (bare, ours) = match metric.sides {
            Some((bare, ours, unit)) => (format!("{} {unit}", figure(bare)), format!("{} {unit}", figure(ours))),
            None => (String::new(), String::new()),
        };
        let Estimate { median, low, high } = metric.estimate;
        let interval = format!("{} .. {}", figure(low), figure(high));
        let verdict = match metric.budget {
            Some(budget) if self.quick => format!("{budget} {}", metric.unit),
            Some(budget) => format!("{budget} {}  {}", metric.unit, if metric.is_ok() { "ok" } else { "MISSED" }),
            None => String::new(),
        };
        let more = format!("{} {}", figure(median), metric.unit);
        println!("{}", format!("{:<62} {bare:>13} {ours:>13} {more:>13}   {interval:<20} {verdict}", metric.name).trim_end());
        self.metrics.push(metric);
    }

    /// Returns the names of the metrics with missed budgets.
    pub fn missed(&self) -> Vec<&str> {
        let judged = self.metrics.iter().filter(|_| !self.quick);
        judged.filter(|metric| !metric.is_ok()).map(|metric| &*metric.name).collect()
    }

    /// Writes `summary.json` and `raw.csv`.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let metrics = self.metrics.iter().map(|metric| {
            let value = (metric.estimate.median * 1e4).round() / 1e4;
            json!({ "name": metric.name, "value": value, "unit": metric.unit, "budget": metric.budget, "ok": self.quick || metric.is_ok() })
        });
        // Each metric is on a separate line, so that the files of two runs are easy to compare.
        let lines: Vec<String> = metrics.map(|metric| metric.to_string()).collect();
        std::fs::write(folder.join("summary.json"), format!("{{\"metrics\": [\n{}\n]}}\n", lines.join(",\n")))?;
        std::fs::write(folder.join("raw.csv"), format!("metric,unit,pair,bare,ours\n{}", self.raw))
    }
}

/// Formats with three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
