//! dlock: a Redis or Valkey server as a lock server.
//!
//! The module is the only code that knows Redis. What a lock is and who gets it next is decided in
//! `dlock-core`; here its words come in, its effects go out. See ARCHITECTURE.md.
//!
//! This file is what the server reads first: the tables of commands, options, types and events, and nothing
//! else.

#![deny(unsafe_code)]

mod clock;
mod commands;
mod config;
mod deadlines;
mod disk;
mod effects;
mod events;
mod evictions;
mod ffi;
mod followers;
mod grace;
mod info;
mod log;
mod mark;
mod module;
mod stats;
mod table;
mod timer;
mod upcalls;
mod value;
mod waiters;
mod warnings;
mod words;

use ffi::{Ctx, docs, notices, setup, types, verdict};
use module::Module;

ffi::load::on_load!(Module, load);

/// Called once, before the server loads its data.
fn load(ctx: Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let must = |done: bool, what: &str| if done { Ok(()) } else { Err(format!("the server refuses {what}")) };
    if let Some(function) = setup::missing() {
        return Err(format!("it needs Redis 7.0 or newer, or Valkey; this server has no {function}"));
    }
    setup::log_panics();
    setup::set_options(ctx);
    clock::start();
    let module = upcalls::start(ctx);
    let defaults = config::defaults(arguments)?;
    must(
        setup::register_settings::<Module>(ctx, &config::SETTINGS, &defaults),
        "an option, or its value in redis.conf",
    )?;
    must(types::register::<Module>(ctx), "the key type")?;
    let own_category = setup::add_category(ctx, "dlock");
    let asking = (!verdict::has_dry_runs(ctx)).then_some(&table::MAY);
    for command in table::COMMANDS.iter().chain(asking) {
        must(setup::register_command(ctx, &command.registration), command.registration.name)?;
        must(docs::describe(ctx, &command.description), command.registration.name)?;
        let categories = command.categories.trim_end_matches(if own_category { "" } else { " dlock" });
        setup::categorize(ctx, command.registration.name, categories);
    }
    grace::at_start(module);
    mark::start(module, ctx);
    must(notices::subscribe::<Module>(ctx), "an event")?;
    must(notices::subscribe_to_evictions::<Module>(ctx), "to tell of evictions")?;
    must(setup::register_info::<Module>(ctx), "the INFO section")?;
    warnings::configured(module, ctx);
    Ok(())
}
