//! dlock: a Redis or Valkey server as a lock server.
//!
//! The module is the only code that knows Redis. What a lock is and who gets it next is decided in `dlock-core`; here
//! its words come in, its effects go out. See ARCHITECTURE.md.
//!
//! This file is what the server reads first: the tables of commands, options, types and events, and nothing else.

mod clock;
mod commands;
mod config;
mod deadlines;
mod deliveries;
mod effects;
mod events;
mod ffi;
mod files;
mod followers;
mod grace;
mod info;
mod mark;
mod pending;
mod scheduled;
mod state;
mod table;
mod value;
mod waiters;
mod words;

use ffi::{Ctx, LogLevel, docs, notices, setup, types, verdict};

/// 0.1.0 as MODULE LIST shows it: two digits each.
const VERSION: i32 = 100;

/// Called once, before the server loads its data.
fn load(ctx: Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let must = |done: bool, what: &str| if done { Ok(()) } else { Err(format!("the server refuses {what}")) };
    if let Some(function) = setup::missing() {
        return Err(format!("it needs Redis 7.0 or newer, or Valkey; this server has no {function}"));
    }
    setup::log_panics();
    setup::set_options(ctx);
    clock::start();
    state::start(config::Config::default());
    let defaults = config::defaults(arguments)?;
    must(
        setup::register_settings(ctx, &config::SETTINGS, &defaults),
        "an option, or its value in redis.conf",
    )?;
    must(types::register(ctx), "the key type")?;
    let own_category = setup::add_category(ctx, "dlock");
    let asking = (!verdict::has_dry_runs(ctx)).then_some(&table::MAY);
    for command in table::COMMANDS.iter().chain(asking) {
        must(setup::register_command(ctx, &command.registration), command.registration.name)?;
        must(docs::describe(ctx, &command.description), command.registration.name)?;
        let categories = command.categories.trim_end_matches(if own_category { "" } else { " dlock" });
        setup::categorize(ctx, command.registration.name, categories);
    }
    // It reads when the mark was written last, so it comes before that is written anew.
    grace::at_start(ctx);
    mark::start(ctx);
    notices::set_job(deadlines::on_timer);
    must(notices::subscribe(ctx, events::on_notice), "an event")?;
    must(notices::subscribe_to_evictions(ctx, grace::evicted), "to tell of evictions")?;
    must(setup::register_info(ctx, info::write), "the INFO section")?;
    if !ctx.announces_module_events() {
        let hint = "nobody will hear of a released lock: notify-keyspace-events has to hold K and d (module \
                    events), for example \"Kd\"";
        ctx.log(LogLevel::Warning, hint);
    }
    Ok(())
}
