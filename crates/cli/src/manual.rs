//! `dlock completions` and `dlock man`, generated from the definitions of the arguments.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::args::help::EXAMPLES;
use crate::args::{self, Dlock};
use crate::exit::{Abort, Error, Failure};
use crate::output::print;

pub fn completions(shell: Shell) -> Result<u8, Abort> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Dlock::command(), "dlock", &mut script);
    show(&script)
}

/// Prints the manual page of a subcommand, or of dlock itself.
pub fn man(subcommand: Option<&str>) -> Result<u8, Abort> {
    let mut dlock = Dlock::command().disable_help_subcommand(true);
    dlock.build();
    let page = match subcommand {
        None => page(dlock),
        Some(name) => {
            let unknown = || {
                let name = args::redact_word(name);
                Error::usage(format_args!("there is no subcommand {name}; `dlock --help` lists them"))
            };
            let found = dlock.find_subcommand(name).ok_or_else(unknown)?;
            page(found.clone().display_name(format!("dlock-{name}")))
        }
    };
    show(&page.map_err(|why| Error::system("the manual", why))?)
}

fn show(text: &[u8]) -> Result<u8, Abort> {
    print(String::from_utf8_lossy(text).trim_end())?;
    Ok(0)
}

/// Renders a page with clap_mangen, except for four sections. In the synopsis, clap_mangen would drop the
/// `--`, and in the examples the line breaks. It does not know the exit codes and the environment variables.
fn page(mut command: Command) -> io::Result<Vec<u8>> {
    let usage = command.render_usage().to_string();
    let examples = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let is_main = command.get_name() == "dlock";
    let man = Man::new(command).manual("dlock").source(concat!("dlock ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    preformatted(&mut page, "SYNOPSIS", usage.trim_start_matches("Usage: "));
    man.render_description_section(&mut page)?;
    if is_main {
        man.render_subcommands_section(&mut page)?;
    } else {
        man.render_options_section(&mut page)?;
    }
    exit_status(&mut page);
    environment(&mut page);
    if let Some(examples) = examples.strip_prefix(EXAMPLES) {
        preformatted(&mut page, "EXAMPLES", examples);
    }
    Ok(page)
}

/// Appends a section in which line breaks are preserved.
fn preformatted(page: &mut Vec<u8>, heading: &str, text: &str) {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    page.extend(roff.control("fi", []).to_roff().bytes());
}

fn exit_status(page: &mut Vec<u8>) {
    let codes = Failure::ALL.map(|failure| (failure.code().to_string(), failure.meaning()));
    let of_run = [
        ("126, 127".to_owned(), "run, elect: the command cannot be executed, or is not found"),
        ("128 + n".to_owned(), "run, elect: the command was killed by signal n"),
        ("any other".to_owned(), "run, elect: the exit code of the command"),
    ];
    let success = [("0".to_owned(), "success")];
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in success.into_iter().chain(codes).chain(of_run) {
        roff.control("TP", []).text([bold(code)]).text([roman(meaning)]);
    }
    page.extend(roff.to_roff().bytes());
}

fn environment(page: &mut Vec<u8>) {
    let variables = [
        ("DLOCK_SERVERS", "the URLs of the servers, separated by commas, unless an argument names them"),
        ("DLOCK_SERVERS_FILE", "a file with one URL per line, if nothing else names the servers"),
        ("DLOCK_CACERT, DLOCK_CERT, DLOCK_KEY", "like the options of these names"),
        ("DLOCK_TTL, DLOCK_LABEL, DLOCK_NODE_TIMEOUT", "like the options of these names"),
        (
            "DLOCK_TOKEN",
            "the token, for release and extend; dlock run sets it, with DLOCK_RESOURCE and DLOCK_FENCE, so that a nested run knows the holds of its parent run",
        ),
        (
            "DLOCK_OWNER",
            "in a nested run, the owner of its parent run, by which the servers detect deadlocks",
        ),
    ];
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in variables {
        roff.control("TP", []).text([bold(name)]).text([roman(meaning)]);
    }
    page.extend(roff.to_roff().bytes());
}
