//! Settings from the command line and the environment, described once in a table.
//!
//! A flag beats its environment variable, which beats the default. Everything that is wrong is one line
//! that names the flag or the variable it came from, and exit status 2.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process;

/// One option: a flag, and perhaps an environment variable of the same meaning.
#[derive(Clone, Copy)]
pub(crate) struct Opt {
    /// Without the dashes.
    flag: &'static str,
    /// What stands for the value in the help; `None` for a switch.
    value: Option<&'static str>,
    env: Option<&'static str>,
    default: Option<&'static str>,
    /// How often the flag may be given.
    times: usize,
    secret: bool,
    help: &'static str,
}

impl Opt {
    /// An option with a value, given at most once, without a default.
    pub(crate) const fn new(flag: &'static str, value: &'static str, help: &'static str) -> Self {
        Self {
            flag,
            value: Some(value),
            env: None,
            default: None,
            times: 1,
            secret: false,
            help,
        }
    }

    /// An option that is on when it is given; its variable says `1` or `0`, and so may `--flag=0`.
    pub(crate) const fn switch(flag: &'static str, help: &'static str) -> Self {
        Self {
            value: None,
            ..Self::new(flag, "", help)
        }
    }

    /// Also read from this environment variable.
    pub(crate) const fn env(self, name: &'static str) -> Self {
        Self {
            env: Some(name),
            ..self
        }
    }

    /// Its value when it is not given; it goes through the same parser, and is shown in the help.
    pub(crate) const fn default(self, value: &'static str) -> Self {
        Self {
            default: Some(value),
            ..self
        }
    }

    /// It may be given up to `times` times.
    pub(crate) const fn up_to(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Its value is repeated in no message.
    pub(crate) const fn secret(self) -> Self {
        Self {
            secret: true,
            ..self
        }
    }
}

/// A program's options and the words around them in its help.
pub(crate) struct Cli {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) options: &'static [Opt],
    /// Shown under the options.
    pub(crate) notes: &'static str,
}

/// What is wrong with a setting: one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) String);

impl Wrong {
    /// Ends the program with the line and status 2.
    pub(crate) fn exit(&self, program: &str) -> ! {
        // A line that cannot be written (standard error is closed) still leaves the status.
        let _ = writeln!(std::io::stderr(), "{program}: {}", self.0);
        process::exit(2)
    }
}

/// What the command line asks for.
pub(crate) enum Asked {
    Help(String),
    Run(Settings),
}

/// The settings as they were given, not yet parsed.
pub(crate) struct Settings {
    given: HashMap<&'static str, Vec<Given>>,
    options: &'static [Opt],
}

struct Given {
    /// `--flag` or `VARIABLE`, for messages.
    origin: String,
    text: String,
}

impl Cli {
    /// The settings of this process. Prints the help, or what is wrong, and exits if there is nothing to run.
    pub(crate) fn settings(&self) -> Settings {
        match self.read(std::env::args_os().skip(1), &|name| std::env::var_os(name)) {
            Ok(Asked::Run(settings)) => settings,
            Ok(Asked::Help(text)) => {
                // A reader that closes the pipe early (`--help | head -1`) is no reason to panic.
                let _ = std::io::stdout().write_all(text.as_bytes());
                process::exit(0)
            }
            Err(wrong) => wrong.exit(self.name),
        }
    }

    /// Reads the arguments (without the program's name) and the environment.
    pub(crate) fn read(
        &self,
        args: impl IntoIterator<Item = OsString>,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Asked, Wrong> {
        let mut given: HashMap<&'static str, Vec<Given>> = HashMap::new();
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(arg) = parser.next().map_err(|error| Wrong(error.to_string()))? {
            let name = match arg {
                lexopt::Arg::Short('h') => return Ok(Asked::Help(self.help())),
                lexopt::Arg::Long("help") => return Ok(Asked::Help(self.help())),
                lexopt::Arg::Long(name) => name,
                lexopt::Arg::Short(letter) => return Err(unknown(&format!("-{letter}"))),
                lexopt::Arg::Value(value) => {
                    return Err(Wrong(format!("unexpected argument {value:?} (see --help)")));
                }
            };
            let Some(option) = self.options.iter().find(|option| option.flag == name) else {
                return Err(unknown(&format!("--{name}")));
            };
            let origin = format!("--{}", option.flag);
            let text = match option.value {
                Some(_) => parser
                    .value()
                    .map_err(|_| Wrong(format!("{origin} needs a value")))?,
                None => parser.optional_value().unwrap_or_else(|| "1".into()),
            };
            let values = given.entry(option.flag).or_default();
            values.push(Given::new(origin, text)?);
            if values.len() > option.times {
                return Err(Wrong(match option.times {
                    1 => format!("--{} may be given only once", option.flag),
                    times => format!("--{} may be given at most {times} times", option.flag),
                }));
            }
        }
        for option in self.options {
            let Some(name) = option.env.filter(|_| !given.contains_key(option.flag)) else {
                continue;
            };
            if let Some(text) = env(name) {
                given.insert(option.flag, vec![Given::new(name.to_owned(), text)?]);
            }
        }
        Ok(Asked::Run(Settings {
            given,
            options: self.options,
        }))
    }

    /// The text of `--help`.
    pub(crate) fn help(&self) -> String {
        let mut text = format!(
            "{}\n\nUsage: {} [OPTIONS]\n\nOptions:\n",
            self.about, self.name
        );
        for option in self.options {
            let mut left = format!("--{}", option.flag);
            if let Some(value) = option.value {
                let _ = write!(left, " {value}");
            }
            let mut right = option.help.to_owned();
            if option.times > 1 {
                let _ = write!(right, " (up to {} times)", option.times);
            }
            let env = option.env.map(|name| format!("env {name}"));
            let default = option.default.map(|value| format!("default {value}"));
            let extras: Vec<_> = env.into_iter().chain(default).collect();
            if !extras.is_empty() {
                let _ = write!(right, " [{}]", extras.join(", "));
            }
            entry(&mut text, &left, &right);
        }
        entry(&mut text, "-h, --help", "this text");
        if !self.notes.is_empty() {
            let _ = write!(text, "\n{}\n", self.notes.trim_end());
        }
        text
    }
}

/// One option in the help: its name, and its words beside it, or below it if the name is long.
fn entry(text: &mut String, left: &str, right: &str) {
    const INDENT: usize = 25;
    const WIDTH: usize = 100;
    let mut line = format!("  {left:<width$}", width = INDENT - 2);
    if left.len() + 2 >= INDENT {
        let _ = writeln!(text, "{}", line.trim_end());
        line = " ".repeat(INDENT);
    }
    let mut fresh = true;
    for word in right.split_whitespace() {
        if !fresh && line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(INDENT);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn unknown(flag: &str) -> Wrong {
    Wrong(format!("unknown option {flag} (see --help)"))
}

impl Given {
    fn new(origin: String, text: OsString) -> Result<Self, Wrong> {
        match text.into_string() {
            Ok(text) => Ok(Self { origin, text }),
            Err(_) => Err(Wrong(format!("{origin}: not UTF-8"))),
        }
    }
}

impl Settings {
    /// The value of an option that has a default, or that must be given.
    pub(crate) fn one<T>(
        &self,
        flag: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Wrong> {
        match self.maybe(flag, parse)? {
            Some(value) => Ok(value),
            None => Err(Wrong(match self.option(flag).env {
                Some(name) => format!("--{flag} (or {name}) is needed"),
                None => format!("--{flag} is needed"),
            })),
        }
    }

    /// The value of an option: as given, else its default, else none.
    pub(crate) fn maybe<T>(
        &self,
        flag: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Wrong> {
        if let Some(value) = self.all(flag, &parse)?.pop() {
            return Ok(Some(value));
        }
        let default = self.option(flag).default.map(parse).transpose();
        default.map_err(|why| Wrong(format!("default of --{flag}: {why}")))
    }

    /// Every value given for an option, in their order; a default counts for none.
    pub(crate) fn all<T>(
        &self,
        flag: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, Wrong> {
        let secret = self.option(flag).secret;
        let given = self.given.get(flag).map(Vec::as_slice).unwrap_or_default();
        let parsed = given.iter().map(|given| {
            parse(&given.text).map_err(|why| {
                Wrong(match secret {
                    true => format!("{}: {why}", given.origin),
                    false => format!("{}: {:?}: {why}", given.origin, given.text),
                })
            })
        });
        parsed.collect()
    }

    /// Whether a switch is on.
    pub(crate) fn on(&self, flag: &str) -> Result<bool, Wrong> {
        Ok(self.maybe(flag, super::values::boolean)?.unwrap_or(false))
    }

    /// Whether an option was given, by flag or by variable.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.given.contains_key(flag)
    }

    fn option(&self, flag: &str) -> &Opt {
        let found = self.options.iter().find(|option| option.flag == flag);
        found.expect("asked for an option that is not in the table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::values;

    const CLI: Cli = Cli {
        name: "try",
        about: "Tries.",
        options: &[
            Opt::new("count", "N", "how many").env("COUNT").default("7"),
            Opt::new("secret", "TEXT", "signs").up_to(2).secret(),
            Opt::new("secrets", "LIST", "signs too")
                .env("SECRETS")
                .secret(),
            Opt::switch("loud", "says more").env("LOUD"),
        ],
        notes: "",
    };

    fn read(args: &[&str], env: &[(&str, &str)]) -> Result<Settings, Wrong> {
        let look = |name: &str| {
            let found = env.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        match CLI.read(args.iter().map(OsString::from), &look)? {
            Asked::Run(settings) => Ok(settings),
            Asked::Help(_) => panic!("help"),
        }
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_default() {
        let count = |args: &[&str], env: &[(&str, &str)]| {
            let settings = read(args, env).unwrap();
            settings.one("count", values::count::<u32>).unwrap()
        };
        assert_eq!(count(&[], &[]), 7);
        assert_eq!(count(&[], &[("COUNT", "8")]), 8);
        assert_eq!(count(&["--count", "9"], &[("COUNT", "8")]), 9);
        assert_eq!(count(&["--count=9"], &[]), 9);
    }

    #[test]
    fn what_is_wrong_is_one_line_that_names_its_origin() {
        let wrong = |result: Result<Settings, Wrong>| result.err().unwrap().0;
        assert_eq!(
            wrong(read(&["--cuont", "9"], &[])),
            "unknown option --cuont (see --help)"
        );
        assert_eq!(wrong(read(&["-x"], &[])), "unknown option -x (see --help)");
        assert_eq!(
            wrong(read(&["stray"], &[])),
            "unexpected argument \"stray\" (see --help)"
        );
        assert_eq!(wrong(read(&["--count"], &[])), "--count needs a value");
        assert_eq!(
            wrong(read(&["--count", "1", "--count", "2"], &[])),
            "--count may be given only once"
        );
        let settings = read(&[], &[("COUNT", "many")]).unwrap();
        let error = settings.one("count", values::count::<u32>).unwrap_err();
        assert_eq!(error.0, "COUNT: \"many\": not a whole number");
    }

    #[test]
    fn a_secret_is_never_repeated() {
        let settings = read(&["--secrets", "hush,,hush"], &[]).unwrap();
        let error = settings.one("secrets", values::secrets).unwrap_err();
        assert!(!error.0.contains("hush"), "{}", error.0);
    }

    #[test]
    fn switches() {
        assert!(!read(&[], &[]).unwrap().on("loud").unwrap());
        assert!(read(&["--loud"], &[]).unwrap().on("loud").unwrap());
        assert!(read(&[], &[("LOUD", "1")]).unwrap().on("loud").unwrap());
        let off = read(&["--loud=0"], &[("LOUD", "1")]).unwrap();
        assert!(!off.on("loud").unwrap());
        assert!(read(&["--loud=maybe"], &[]).unwrap().on("loud").is_err());
    }

    #[test]
    fn the_help_lists_everything() {
        let help = CLI.help();
        for word in ["--count N", "env COUNT", "default 7", "--loud", "--help"] {
            assert!(help.contains(word), "{word} is not in\n{help}");
        }
    }
}
