//! The servers beside the masters: replicas, with the masters of a cluster that have no slots, and sentinels.
//! They grant no locks, so their state changes neither the exit code of `status` nor what counts as a
//! majority.

use dlock_client::{Answer, Client, Inspected, Sentinel};
use serde_json::{Value, json};

use crate::operators::{INFO, Info, read_info};
use crate::output::{cell, escape_control, table};

pub struct Beside {
    pub replicas: Vec<Inspected<Info>>,
    pub sentinels: Vec<Inspected<Sentinel>>,
}

impl Beside {
    pub async fn ask(client: &Client) -> Beside {
        let replicas = client.ask_replicas(&INFO).await.into_iter().map(read_info).collect();
        Beside { replicas, sentinels: client.sentinels().await }
    }

    /// `masters` know the lag of their replicas.
    pub fn replicas_json(&self, masters: &[Inspected<Info>]) -> Vec<Value> {
        let json = |seen: &Inspected<Info>| match &seen.answer {
            Answer::Unanswered(why) => json!({ "server": seen.server, "unanswered": why }),
            Answer::Found(info) => json!({
                "server": seen.server,
                "version": info.version(),
                "role": info.role(),
                "module": info.module(),
                "master": info.master(),
                "link": info.text("master_link_status"),
                "lag_s": lag(&seen.server, masters),
                "held": info.number("dlock_held"),
            }),
        };
        self.replicas.iter().map(json).collect()
    }

    /// The tables of the replicas and of the sentinels. Empty if there are none.
    pub fn tables(&self, masters: &[Inspected<Info>]) -> String {
        let mut text = String::new();
        if !self.replicas.is_empty() {
            let mut rows = table(&["REPLICA", "VERSION", "ROLE", "MODULE", "MASTER", "LINK", "LAG"]);
            for Inspected { server, answer } in &self.replicas {
                rows.add_row(match answer {
                    Answer::Unanswered(why) => vec![cell(server), escape_control(why)],
                    Answer::Found(info) => vec![
                        cell(server),
                        cell(info.version()),
                        cell(info.role()),
                        cell(info.module()),
                        cell(info.master()),
                        cell(info.text("master_link_status")),
                        match lag(server, masters) {
                            Some(lag) => format!("{lag}s"),
                            None if info.is_master() => String::new(),
                            None => "unknown".into(),
                        },
                    ],
                });
            }
            text += &format!("\n\n{}", rows.trim_fmt());
        }
        if !self.sentinels.is_empty() {
            let mut rows = table(&["SENTINEL", "NAMES THE MASTER", "QUORUM", "SENTINELS"]);
            for Inspected { server, answer } in &self.sentinels {
                rows.add_row(match answer {
                    Answer::Unanswered(why) => vec![cell(server), escape_control(why)],
                    Answer::Found(says) => vec![
                        cell(server),
                        cell(&says.master),
                        says.quorum.to_string(),
                        says.sentinels.to_string(),
                    ],
                });
            }
            text += &format!("\n\n{}", rows.trim_fmt());
        }
        text
    }
}

/// Seconds since the last message of the replica at this address, as one of the masters reports them. `None`
/// if no master is connected to it.
pub fn lag(replica: &str, masters: &[Inspected<Info>]) -> Option<u64> {
    let masters = masters.iter().filter_map(|seen| seen.answer.found());
    let of_master = |info: &Info| {
        info.replicas().into_iter().find(|known| replica.ends_with(&format!("://{}", known.address)))
    };
    masters.filter_map(of_master).map(|known| known.lag_s).next()
}
