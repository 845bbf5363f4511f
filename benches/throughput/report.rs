//! What is printed, and what goes into a file.

use std::path::Path;

use crate::catalogue::{Bar, Group, Load, Measure};
use crate::load::Slice;
use crate::rounds::Measured;

/// A round whose reference is further off its median than this factor says nothing about the other side.
const OFF: f64 = 2.0;
/// Early events of an ordered feed, as a share: more, and it is the load that is out of order.
const EARLY: f64 = 0.05;
/// Of a core: with more, the load itself may be what limits.
const BUSY: f64 = 0.9;

/// Prints, and remembers what it printed.
#[derive(Default)]
pub(crate) struct Report {
    text: String,
}

impl Report {
    pub(crate) fn line(&mut self, line: &str) {
        println!("{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A line for the file alone.
    pub(crate) fn close(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes all lines between the two markers `<!-- SECTION -->` and `<!-- /SECTION -->` of a file.
    ///
    /// # Errors
    /// If the file cannot be read or written, or has no markers.
    pub(crate) fn write(&self, file: &Path, section: &str) -> Result<(), String> {
        let named = |error: std::io::Error| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(named)?;
        let (from, until) = (
            format!("<!-- {section} -->"),
            format!("<!-- /{section} -->"),
        );
        let (Some(from), Some(until)) = (
            text.find(&from).map(|at| at + from.len()),
            text.find(&until),
        ) else {
            return Err(format!("{}: no line {from} or {until}", file.display()));
        };
        let results = self.text.trim();
        let text = format!("{}\n\n{results}\n\n{}", &text[..from], &text[until..]);
        std::fs::write(file, text).map_err(named)
    }
}

/// Printed only.
pub(crate) fn slice(round: usize, label: &str, slice: &Slice) {
    let [receiver, database, load] = slice.cpu[..] else {
        return;
    };
    let early = if slice.early > 0 {
        format!("  {} early", slice.early)
    } else {
        String::new()
    };
    println!(
        "  round {round}: {label:18} {:8.0}/s  CPU/event {:6.1} us receiver {:6.1} us database  p50 {:5} us  p99 {:6} us  load {:3.0} % of a core{early}",
        slice.rate(),
        each(slice, receiver),
        each(slice, database),
        slice.percentile(50),
        slice.percentile(99),
        100.0 * load / slice.took.as_secs_f64(),
    );
}

/// The medians of each side.
pub(crate) fn table(report: &mut Report, group: &Group, bars: &[&Bar], measured: &[Measured]) {
    let names: Vec<String> = bars.iter().map(|bar| format!("`{}`", bar.name)).collect();
    let load = match group.load {
        Load::Closed => format!("{} connections", group.connections),
        Load::Half => "half the rate of the slowest side".into(),
    };
    report.line(&format!(
        "\n{}: {:?}, {load}\n",
        names.join(", "),
        group.database
    ));
    report.line("| side | events/s | CPU µs/event, receiver | CPU µs/event, database | p50 µs | p99 µs | WAL bytes/event | load, % of a core |");
    report.line("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut remarks = Vec::new();
    for side in measured {
        let of = |value: &dyn Fn(&Slice) -> f64| median(side.slices.iter().map(value).collect());
        let load = of(&|slice| slice.cpu[2] / slice.took.as_secs_f64());
        report.line(&format!(
            "| {} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {} | {:.0} |",
            side.label,
            of(&Slice::rate),
            of(&|slice| each(slice, slice.cpu[0])),
            of(&|slice| each(slice, slice.cpu[1])),
            of(&|slice| f64::from(slice.percentile(50))),
            of(&|slice| f64::from(slice.percentile(99))),
            if side.slices.iter().all(|slice| slice.logged.is_some()) {
                let logged = |slice: &Slice| slice.logged.unwrap_or(0) as f64;
                format!(
                    "{:.0}",
                    of(&|slice| logged(slice) / slice.sent.max(1) as f64)
                )
            } else {
                "".into()
            },
            100.0 * load
        ));
        let early = of(&|slice| slice.early as f64 / slice.done.max(1) as f64);
        if early > EARLY {
            remarks.push(format!(
                "{}: {:.0} % came before their predecessor, and were sent again.",
                side.label,
                100.0 * early
            ));
        }
        if load > BUSY {
            remarks.push(format!("{}: the load may be what limits it.", side.label));
        }
    }
    if !remarks.is_empty() {
        report.line(&format!("\n{}", remarks.join("\n")));
    }
}

/// Microseconds of an event.
fn each(slice: &Slice, seconds: f64) -> f64 {
    seconds * 1e6 / slice.done.max(1) as f64
}

/// `bar <name> <median> (<min>-<max>) goal <goal>`; None if one of its sides was skipped.
pub(crate) fn bar(report: &mut Report, bar: &Bar, measured: &[Measured]) -> Option<String> {
    let side = |label| measured.iter().find(|side| side.label == label);
    let (of, over) = (side(bar.of)?, side(bar.over)?);
    let value = |slice: &Slice| match bar.measure {
        Measure::Rate => slice.rate(),
        Measure::P99 => f64::from(slice.percentile(99)),
    };
    let usual = median(over.slices.iter().map(value).collect());
    let mut ratios = Vec::new();
    for (round, (of, over)) in of.slices.iter().zip(&over.slices).enumerate() {
        let off = value(over) / usual;
        if !(1.0 / OFF..=OFF).contains(&off) {
            report.line(&format!(
                "\n{}: round {round} is left out, since {} was at {off:.2} of its median.",
                bar.name, bar.over
            ));
            continue;
        }
        ratios.push(value(of) / value(over));
    }
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios.first()?, ratios.last()?);
    Some(format!(
        "bar {} {:.3} ({least:.3}-{most:.3}) goal {}",
        bar.name,
        median(ratios.clone()),
        bar.goal
    ))
}

/// 0 of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}
