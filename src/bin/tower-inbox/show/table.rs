//! Tables for people: fit for the terminal, by what characters take on it.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::safe;

/// Between two columns.
const GAP: usize = 2;
/// No column of text becomes narrower than this.
const NARROWEST: usize = 10;

/// A column, and what may be done to it where there is no room.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    name: &'static str,
    right: bool,
    shrinks: bool,
    optional: bool,
}

impl Column {
    /// Shown whole.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            right: false,
            shrinks: false,
            optional: false,
        }
    }

    /// A number.
    pub(crate) const fn number(name: &'static str) -> Self {
        Self {
            right: true,
            ..Self::new(name)
        }
    }

    /// A text of any length, cut where there is no room.
    pub(crate) const fn text(name: &'static str) -> Self {
        Self {
            shrinks: true,
            ..Self::new(name)
        }
    }

    /// Left out where there is no room at all, the last one first.
    pub(crate) const fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }
}

/// Rows under a head.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// One cell for each column, made harmless.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows
            .push(cells.iter().map(|cell| safe(cell)).collect());
    }

    /// Each line ends with a line end. No wider than `room`, as far as that can be.
    pub(crate) fn render(&self, room: Option<usize>) -> String {
        let natural: Vec<_> = (0..self.columns.len()).map(|n| self.widest(n)).collect();
        let mut shown: Vec<_> = (0..self.columns.len()).collect();
        let mut widths = natural.clone();
        let mut left_out = 0;
        if let Some(room) = room {
            loop {
                widths.clone_from(&natural);
                if self.fit(&shown, &mut widths, room) {
                    break;
                }
                let last = shown.iter().rposition(|n| self.columns[*n].optional);
                let Some(last) = last else { break };
                shown.remove(last);
                left_out += 1;
            }
        }
        let mut out = String::new();
        let head: Vec<_> = self
            .columns
            .iter()
            .map(|column| column.name.to_owned())
            .collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            self.line(&mut out, row, &shown, &widths);
        }
        if left_out > 0 {
            let s = if left_out == 1 { "" } else { "s" };
            out.push_str(&format!(
                "({left_out} column{s} left out for want of room; --json has all)\n"
            ));
        }
        out
    }

    fn widest(&self, n: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[n].width());
        cells
            .chain([self.columns[n].name.width()])
            .max()
            .unwrap_or(0)
    }

    /// Makes the widest text narrower until all fits. False if it cannot.
    fn fit(&self, shown: &[usize], widths: &mut [usize], room: usize) -> bool {
        loop {
            let gaps = GAP * shown.len().saturating_sub(1);
            let total: usize = shown.iter().map(|n| widths[*n]).sum::<usize>() + gaps;
            if total <= room {
                return true;
            }
            let shrinking = shown
                .iter()
                .copied()
                .filter(|n| self.columns[*n].shrinks && widths[*n] > NARROWEST)
                .max_by_key(|n| widths[*n]);
            let Some(widest) = shrinking else {
                return false;
            };
            widths[widest] -= 1;
        }
    }

    fn line(&self, out: &mut String, row: &[String], shown: &[usize], widths: &[usize]) {
        let mut line = String::new();
        for (place, n) in shown.iter().enumerate() {
            let cell = cut(&row[*n], widths[*n]);
            let pad = " ".repeat(widths[*n].saturating_sub(cell.width()));
            if place > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            if self.columns[*n].right {
                line.push_str(&pad);
                line.push_str(&cell);
            } else {
                line.push_str(&cell);
                line.push_str(&pad);
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// No wider than this on a terminal.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > width {
            break;
        }
        used += wide;
        out.push(c);
    }
    out.push('…');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = [
            Column::text("ID"),
            Column::number("N"),
            Column::text("WHY").optional(),
        ];
        let mut table = Table::new(&columns);
        table.row(["数数数数".into(), "1".into(), "because".into()]);
        table.row(["a\u{1b}[2J".into(), "200".into(), "x".repeat(60)]);
        table
    }

    #[test]
    fn columns_stand_under_each_other_by_what_their_characters_take() {
        let text = table().render(None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "ID            N  WHY");
        assert_eq!(lines[1], "数数数数      1  because");
        assert_eq!(lines[2], format!("a\\u{{1b}}[2J  200  {}", "x".repeat(60)));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for room in 22..100 {
            for line in table()
                .render(Some(room))
                .lines()
                .filter(|line| !line.starts_with('('))
            {
                assert!(line.width() <= room, "{room}: {line}");
            }
        }
        let narrow = table().render(Some(20));
        assert!(
            narrow.contains("1 column left out") && !narrow.contains("WHY"),
            "{narrow}"
        );
        assert!(table().render(Some(40)).contains('…'));
    }

    #[test]
    fn a_wide_character_is_not_cut_in_half() {
        assert_eq!(cut("数数数", 4), "数…");
        assert_eq!(cut("数数数", 6), "数数数");
    }
}
