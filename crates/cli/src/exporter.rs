//! `dlock exporter`: the metrics by HTTP, for Prometheus. HTTP/1.0: an answer to each connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dlock_client::Client;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{sleep, timeout};

use crate::args::Exporter;
use crate::exit::Error;
use crate::hold::print;
use crate::lock::Abort;
use crate::metrics::collect;

/// So many connections are open at a time; others wait to be accepted.
const MOST_CONNECTIONS: usize = 256;

/// Scrapes that are answered, one after the other; more are refused.
const MOST_SCRAPES: usize = 16;

/// A peer has so long to send its request, and to read the answer.
const LIMIT: Duration = Duration::from_secs(10);

/// So many bytes are read of a peer.
const LONGEST_REQUEST: u64 = 16 << 10;

pub async fn exporter(args: Exporter) -> Result<u8, Abort> {
    let cannot = |why| Error::system(format_args!("cannot listen on {}", args.listen), why);
    let listener = TcpListener::bind(&*args.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let (client, most) = (args.metrics.servers.observer().await?, args.metrics.resources);
    print(&format!("listening on http://{address}/metrics"))?;
    let scrapes =
        Arc::new(Scrapes { client, most, turn: Mutex::new(()), slots: Semaphore::new(MOST_SCRAPES) });
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let slot = slots.clone().acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // Such as too many open files: it passes.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let scrapes = scrapes.clone();
        tokio::spawn(async move {
            let _ = serve(stream, &scrapes).await;
            drop(slot);
        });
    }
}

/// Who asks the servers.
struct Scrapes {
    client: Client,
    /// So many resources are shown.
    most: usize,
    turn: Mutex<()>,
    slots: Semaphore,
}

async fn serve(mut stream: TcpStream, scrapes: &Scrapes) -> io::Result<()> {
    let Some(request) = timeout(LIMIT, request(&mut stream)).await?? else { return Ok(()) };
    let answer = answer(&request, scrapes).await;
    timeout(LIMIT, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closed with something unread, the connection would be reset, and the answer lost.
        copy(&mut stream.take(LONGEST_REQUEST), &mut sink()).await
    })
    .await??;
    Ok(())
}

/// The first line; `None` if there is none.
async fn request(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut lines = BufReader::new(stream.take(LONGEST_REQUEST)).lines();
    let first = lines.next_line().await?;
    while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    Ok(first)
}

async fn answer(request: &str, scrapes: &Scrapes) -> String {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, text) = match (method, target.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => match scrapes.slots.try_acquire() {
            Ok(_slot) => {
                let _turn = scrapes.turn.lock().await;
                let metrics = collect(&scrapes.client, scrapes.most).await;
                ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics)
            }
            Err(_) => ("503 Service Unavailable", "text/plain", "too many scrapes\n".into()),
        },
        ("GET" | "HEAD", "/") => ("200 OK", "text/html", "<a href=\"/metrics\">dlock's metrics</a>\n".into()),
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "the metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".into()),
    };
    let head = format!("HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", text.len());
    if method == "HEAD" { head } else { head + &text }
}
