//! `dlock completions` and `dlock man`: made from the definitions of the arguments, so that they cannot differ.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::args::Dlock;
use crate::exit::{Error, Failure};
use crate::hold::print;

pub fn completions(shell: Shell) -> Result<u8, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Dlock::command(), "dlock", &mut script);
    show(&script)
}

/// The page of a subcommand, or of dlock itself.
pub fn man(subcommand: Option<&str>) -> Result<u8, Error> {
    let mut dlock = Dlock::command();
    dlock.build();
    let page = match subcommand {
        None => page(dlock),
        Some(name) => match dlock.find_subcommand(name) {
            Some(found) => page(found.clone().display_name(format!("dlock-{name}"))),
            None => {
                return Err(Error::usage(format_args!(
                    "there is no subcommand {name}; `dlock --help` lists them"
                )));
            }
        },
    };
    show(&page.map_err(|why| Error::system("the manual", why))?)
}

fn show(text: &[u8]) -> Result<u8, Error> {
    print(String::from_utf8_lossy(text).trim_end())?;
    Ok(0)
}

/// As clap_mangen renders it, with what it does not know of: the exit codes and the environment.
fn page(command: Command) -> io::Result<Vec<u8>> {
    let main = command.get_name() == "dlock";
    let man = Man::new(command).manual("dlock");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if main {
        man.render_subcommands_section(&mut page)?;
    } else {
        man.render_options_section(&mut page)?;
    }
    exit_status(&mut page)?;
    environment(&mut page)?;
    man.render_extra_section(&mut page)?;
    Ok(page)
}

fn exit_status(page: &mut Vec<u8>) -> io::Result<()> {
    let codes = Failure::ALL.map(|failure| (failure.code().to_string(), failure.meaning()));
    let of_run = [
        ("126, 127".to_owned(), "run: the command cannot be run, or is not found"),
        ("128 + n".to_owned(), "run: signal n has ended the command"),
        ("any other".to_owned(), "run: the command's own"),
    ];
    let done = [("0".to_owned(), "done")];
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in done.into_iter().chain(codes).chain(of_run) {
        roff.control("TP", []).text([bold(code)]).text([roman(meaning)]);
    }
    roff.to_writer(page)
}

fn environment(page: &mut Vec<u8>) -> io::Result<()> {
    let variables = [
        ("DLOCK_SERVERS", "the servers' URLs with commas between, where no argument names them"),
        ("DLOCK_SERVERS_FILE", "a file with a URL on each line, where nothing else names the servers"),
        ("DLOCK_CACERT, DLOCK_CERT, DLOCK_KEY", "as the options of these names"),
        ("DLOCK_TOKEN", "the token, for release and extend"),
    ];
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in variables {
        roff.control("TP", []).text([bold(name)]).text([roman(meaning)]);
    }
    roff.to_writer(page)
}
