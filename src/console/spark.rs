//! The last 24 hours as a small drawing.

use maud::{Markup, html};

use super::show;
use crate::stats::Slot;

const HEIGHT: u64 = 28;
/// Of one hour, and the space behind it.
const STEP: usize = 7;
const BAR: usize = 5;

/// A bar an hour: all deliveries, and the failed ones in front of them, at the bottom.
pub(super) fn bars(slots: &[Slot]) -> Markup {
    let most = slots
        .iter()
        .map(|slot| slot.total)
        .max()
        .unwrap_or(0)
        .max(1);
    let (total, failed) = slots.iter().fold((0, 0), |(total, failed), slot| {
        (total + slot.total, failed + slot.failed)
    });
    let says = format!(
        "Deliveries by the hour, the last 24 hours: {} in all, {} failed, {} in the busiest hour",
        show::count(total),
        show::count(failed),
        show::count(slots.iter().map(|slot| slot.total).max().unwrap_or(0)),
    );
    let width = (slots.len().max(1) * STEP).saturating_sub(STEP - BAR);
    html! {
        svg.spark viewBox={ "0 0 " (width) " " (HEIGHT) } role="img" aria-label=(says) preserveAspectRatio="none" {
            title { (says) }
            @for (index, slot) in slots.iter().enumerate() {
                (bar("all", index, height(slot.total, most)))
                (bar("failed", index, height(slot.failed.min(slot.total), most)))
            }
        }
    }
}

/// Whatever is not zero can be seen.
fn height(number: u64, most: u64) -> u64 {
    match number {
        0 => 0,
        number => (u128::from(number) * u128::from(HEIGHT) / u128::from(most))
            .clamp(2, u128::from(HEIGHT)) as u64,
    }
}

fn bar(class: &str, index: usize, height: u64) -> Markup {
    html! {
        @if height > 0 {
            rect.(class) x=(index * STEP) y=(HEIGHT - height) width=(BAR) height=(height) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_among_millions_can_be_seen() {
        assert_eq!(height(1, 5_000_000), 2);
        assert_eq!(height(u64::MAX, u64::MAX), HEIGHT);
        assert_eq!(height(0, 1), 0);
    }
}
