//! `dlock exporter`: serves the metrics over HTTP, for Prometheus.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dlock_client::Client;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{sleep, timeout};

use crate::args::Exporter;
use crate::exit::{Abort, Error};
use crate::operators::metrics::collect;
use crate::output::{print, warn};

/// The greatest number of connections that are open at the same time. Others wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

/// The greatest number of scrapes that are under way. Further scrapes are refused with 503. Only one scrape
/// at a time asks the servers.
const MAX_SCRAPES: usize = 16;

/// The time limit of a connection: longer than Prometheus waits for an answer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);

/// The size limit of a request, in bytes.
const MAX_REQUEST: usize = 16 << 10;

pub async fn exporter(args: Exporter) -> Result<u8, Abort> {
    let cannot = |why: io::Error| match why.kind() {
        io::ErrorKind::InvalidInput => Error::usage(format_args!("--listen {}: {why}", args.listen)),
        _ => Error::system(format_args!("cannot listen on {}", args.listen), why),
    };
    let listener = TcpListener::bind(&*args.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let (client, max_resources) = (args.metrics.servers.observer().await?, args.metrics.resources.into());
    print(&format!("listening on http://{address}/metrics"))?;
    let (one_at_a_time, slots) = (Mutex::default(), Semaphore::new(MAX_SCRAPES));
    let scrapes = Arc::new(Scrapes { client, max_resources, one_at_a_time, slots });
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = connections.clone().acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // For example too many open files, which is temporary.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let scrapes = scrapes.clone();
        tokio::spawn(async move {
            serve(stream, &scrapes).await;
            drop(permit);
        });
    }
}

/// Answers scrapes one after the other.
struct Scrapes {
    client: Client,
    /// The number of resources that have metrics of their own (--resources).
    max_resources: usize,
    /// Locked by the scrape that asks the servers. The faults that the last one found.
    one_at_a_time: Mutex<Vec<String>>,
    /// Has a permit for each scrape that may be under way.
    slots: Semaphore,
}

async fn serve(stream: TcpStream, scrapes: &Scrapes) {
    let service = service_fn(|request| async move { Ok::<_, Infallible>(answer(&request, scrapes).await) });
    let mut http = http1::Builder::new();
    // No keep-alive, so that no connection is occupied during the seconds between two scrapes.
    http.timer(TokioTimer::new()).keep_alive(false).max_buf_size(MAX_REQUEST);
    let _ = timeout(CONNECTION_LIMIT, http.serve_connection(TokioIo::new(stream), service)).await;
}

async fn answer(request: &Request<Incoming>, scrapes: &Scrapes) -> Response<Full<Bytes>> {
    let (code, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match scrapes.slots.try_acquire() {
            Ok(_slot) => {
                let mut known = scrapes.one_at_a_time.lock().await;
                let (metrics, faults) = collect(&scrapes.client, scrapes.max_resources).await;
                faults.iter().filter(|fault| !known.contains(fault)).for_each(warn);
                *known = faults;
                (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics)
            }
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "too many scrapes\n".into()),
        },
        (&Method::GET | &Method::HEAD, "/") => {
            (StatusCode::OK, "text/html", "<a href=\"/metrics\">dlock's metrics</a>\n".into())
        }
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, "text/plain", "the metrics are at /metrics\n".into())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".into()),
    };
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
