//! Rounds: the sides of a group in turns, several times.

use crate::arguments::{Arguments, Plan, stop};
use crate::catalogue::{APART, Bar, GROWTH, Group, Load, MEMORY};
use crate::groups::GROUPS;
use crate::load::Slice;
use crate::report::{self, Report};
use crate::servers::Servers;
use crate::sides::Running;
use crate::{apart, machine, memory};

/// Each side's slices, one a round.
pub(crate) struct Measured {
    pub(crate) label: &'static str,
    pub(crate) slices: Vec<Slice>,
}

/// Where in a file the results of these figures go: what takes long has a place of its own, and is not lost when the rest is
/// measured again.
fn section(only: &[String]) -> &'static str {
    let takes_long = |name: &String| name == GROWTH || name == MEMORY;
    if only == [APART] {
        APART
    } else if !only.is_empty() && only.iter().all(takes_long) {
        "growth"
    } else {
        "results"
    }
}

pub(crate) async fn all(arguments: &Arguments) {
    let (only, plan) = (&arguments.only, &arguments.plan);
    // What takes long is asked for by its name.
    let wanted = |group: &Group, bar: &Bar| match only.is_empty() {
        true => group.topic.is_empty(),
        false => only
            .iter()
            .any(|name| name == bar.name || name == group.topic),
    };
    let memory = only.iter().any(|name| name == MEMORY);
    for name in only {
        let of_group = |group: &Group| {
            group.topic == name.as_str() || group.bars.iter().any(|bar| bar.name == name)
        };
        if name != MEMORY && name != APART && !GROUPS.iter().any(of_group) {
            stop(&format!("there is no figure {name}; --list has them"));
        }
    }
    let mut report = Report::default();
    for line in machine::describe() {
        report.line(&format!("- {line}"));
    }
    report.line(&format!(
        "- {} rounds, each {:?} for each side after {:?} that do not count ({})",
        plan.rounds, plan.slice, plan.warm, plan.name
    ));
    let (mut servers, mut bars, mut failed) = (Servers::default(), Vec::new(), false);
    for group in GROUPS {
        let of_group: Vec<&'static Bar> =
            (group.bars.iter().filter(|bar| wanted(group, bar))).collect();
        if of_group.is_empty() {
            continue;
        }
        match run(group, &of_group, plan, &mut servers).await {
            Ok(measured) => {
                report::table(&mut report, group, &of_group, &measured);
                for bar in of_group {
                    bars.extend(report::bar(&mut report, bar, &measured));
                }
            }
            Err(why) => {
                failed = true;
                report.line(&format!("\nFAILED {}: {why}", of_group[0].name));
            }
        }
    }
    if memory && let Err(why) = memory::all(&mut report, &mut servers, plan.quick).await {
        failed = true;
        report.line(&format!("\nFAILED {MEMORY}: {why}"));
    }
    if only.iter().any(|name| name == APART) {
        apart::all(&mut report, &mut servers, plan).await;
    }
    report.line("");
    for line in machine::servers(&servers).await {
        report.line(&format!("- {line}"));
    }
    drop(servers);
    if !bars.is_empty() {
        report.line("\n```text");
        for bar in &bars {
            report.line(bar);
        }
    }
    // The bars close what is printed.
    if let Some(file) = &arguments.write {
        if !bars.is_empty() {
            report.close("```");
        }
        if let Err(why) = report.write(file, section(only)) {
            stop(&why);
        }
    }
    if failed {
        std::process::exit(1);
    }
}

async fn run(
    group: &'static Group,
    bars: &[&'static Bar],
    plan: &Plan,
    servers: &mut Servers,
) -> Result<Vec<Measured>, String> {
    let mut running = Vec::new();
    for side in group.sides {
        if bars
            .iter()
            .any(|bar| bar.of == side.label || bar.over == side.label)
        {
            running.extend(Running::start(side, group, servers).await);
        }
    }
    let measured = turns(&mut running, group, plan).await;
    for side in running {
        side.close().await;
    }
    measured
}

async fn turns(
    running: &mut [Running],
    group: &Group,
    plan: &Plan,
) -> Result<Vec<Measured>, String> {
    let mut measured: Vec<Measured> = Vec::new();
    for side in running.iter_mut() {
        let label = side.side.label;
        let named = |why| format!("{label}: {why}");
        side.prime(plan, group.connections).await.map_err(named)?;
        // Once for nothing: connections, statements and pages are there then, and it is known how much is to be made.
        side.turn(plan, group.connections, None)
            .await
            .map_err(named)?;
        measured.push(Measured {
            label,
            slices: Vec::new(),
        });
    }
    let slowest = running.iter().map(|side| side.rate).reduce(f64::min);
    let rate = match group.load {
        Load::Closed => None,
        Load::Half => slowest.map(|rate| rate / 2.0),
    };
    for round in 0..plan.rounds {
        for (side, measured) in running.iter_mut().zip(&mut measured) {
            let slice = side.turn(plan, group.connections, rate).await;
            let slice = slice.map_err(|why| format!("{}: {why}", side.side.label))?;
            report::slice(round, side.side.label, &slice);
            measured.slices.push(slice);
        }
    }
    Ok(measured)
}
