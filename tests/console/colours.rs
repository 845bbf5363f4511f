//! Every colour of text can be read on every ground that it stands on: a contrast of at least 4.5, as WCAG 2 counts it.

use std::collections::BTreeMap;

type Colour = [f64; 3];

/// The colours by name, of light, and of dark where it has others.
fn themes() -> [BTreeMap<String, Colour>; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/style.css");
    let style = std::fs::read_to_string(path).expect("the style");
    let mut themes = style.split(":root {").skip(1).map(|block| {
        let block = block.split('}').next().unwrap_or_default();
        let pairs = block
            .split(';')
            .filter_map(|line| line.trim().strip_prefix("--")?.split_once(": "));
        let colours = pairs.filter_map(|(name, value)| Some((name.to_owned(), colour(value)?)));
        colours.collect::<BTreeMap<_, _>>()
    });
    let light = themes.next().expect("light");
    let mut dark = light.clone();
    dark.extend(themes.next().expect("dark"));
    [light, dark]
}

/// `#rrggbb`, or a share such as `9%`, of which there is one number.
fn colour(text: &str) -> Option<Colour> {
    if let Some(share) = text.strip_suffix('%') {
        return Some([share.parse::<f64>().ok()? / 100.0; 3]);
    }
    let hex = text.strip_prefix('#')?;
    let part = |from: usize| {
        Some(f64::from(u8::from_str_radix(hex.get(from..from + 2)?, 16).ok()?) / 255.0)
    };
    Some([part(0)?, part(2)?, part(4)?])
}

fn luminance(colour: Colour) -> f64 {
    let [red, green, blue] = colour.map(|part| match part {
        ..=0.040_45 => part / 12.92,
        _ => ((part + 0.055) / 1.055).powf(2.4),
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

fn contrast(one: Colour, other: Colour) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn every_colour_of_text_can_be_read_on_its_ground() {
    let mut pairs = 0;
    for colours in themes() {
        let of = |name: &str| colours[name];
        let (card, share) = (of("card"), of("tint")[0]);
        // A badge, a cell and an alert have a little of their own colour as their ground.
        let tinted = |colour: Colour| {
            [0, 1, 2].map(|part| colour[part] * share + card[part] * (1.0 - share))
        };
        let mut check = |what: &str, text: Colour, ground: Colour| {
            let contrast = contrast(text, ground);
            assert!(contrast >= 4.5, "{what}: {contrast:.2}");
            pairs += 1;
        };
        for name in [
            "ink", "quiet", "accent", "good", "gap", "parked", "failing", "dead", "skipped",
        ] {
            let text = of(name);
            for (ground, colour) in [
                ("ground", of("ground")),
                ("card", card),
                ("tint", tinted(text)),
            ] {
                check(&format!("{name} on {ground}"), text, colour);
                check(&format!("ink on {name}'s {ground}"), of("ink"), colour);
            }
        }
        check("a button", of("on-accent"), of("accent"));
        check("a grave button", card, of("dead"));
    }
    assert_eq!(pairs, 112);
}
