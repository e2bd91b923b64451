//! `dlock status`: the state of each server, with its replicas and the sentinels.

use dlock_client::{Answer, Inspected};
use serde_json::{Value, json};

use crate::args::Status;
use crate::exit::Abort;
use crate::operators::beside::Beside;
use crate::operators::{ClusterMap, Health, Info, ask_info, servers_table};
use crate::output::{escape_json, print};

pub async fn status(args: Status) -> Result<u8, Abort> {
    let client = args.servers.observer().await?;
    let map = ClusterMap::ask(&client).await;
    let servers = ask_info(&client).await;
    let health = Health::of(&servers, client.needed(), &map);
    let beside = Beside::ask(&client).await;
    if args.json {
        print(&escape_json(&json!({
            "status": health,
            "servers": servers.iter().map(|seen| server_json(seen, &map)).collect::<Vec<_>>(),
            "replicas": beside.replicas_json(&servers),
            "sentinels": beside.sentinels,
            "missing_slots": map.missing(),
            "map_error": map.error,
            "other_clusters": map.state.strangers,
        })))?;
    } else {
        let message = map.message().map(|message| format!("\n\n{message}")).unwrap_or_default();
        print(&format!("{}{message}{}", servers_table(&servers, Some(&map)), beside.tables(&servers)))?;
    }
    Ok(health.code())
}

fn server_json(seen: &Inspected<Info>, map: &ClusterMap) -> Value {
    let info = match &seen.answer {
        Answer::Found(info) => info,
        Answer::Unanswered(why) => {
            return json!({ "server": seen.server, "unanswered": why, "slots": map.slots(&seen.server) });
        }
    };
    json!({
        "server": seen.server,
        "version": info.version(),
        "role": info.role(),
        "module": info.module(),
        "refusal": info.refusal(),
        "slots": map.slots(&seen.server),
        "replicas": info.replicas(),
        "uptime_s": info.number("uptime_in_seconds"),
        "grace_ms_left": info.number("dlock_grace_ms_left"),
        "fence_mark": info.text("dlock_fence_mark_status"),
        "warnings": info.warnings().collect::<Vec<_>>(),
        "held": info.number("dlock_held"),
        "holders": info.number("dlock_holders"),
        "waiters": info.waiters(),
    })
}
