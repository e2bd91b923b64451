//! `dlock exporter`: the metrics by HTTP, for Prometheus.

use std::io::Cursor;
use std::thread;

use tiny_http::{Header, Method, Request, Response, Server};
use tokio::sync::mpsc::{self, Sender};

use crate::args::Exporter;
use crate::exit::{Error, Failure};
use crate::hold::print;
use crate::lock::Abort;
use crate::metrics::collect;

/// Scrapes that wait while another is answered; more are refused.
const MOST_SCRAPES: usize = 16;

pub async fn exporter(args: Exporter) -> Result<u8, Abort> {
    let server = Server::http(&*args.listen)
        .map_err(|why| Error::system(format_args!("cannot listen on {}", args.listen), why))?;
    let client = args.metrics.servers.observer().await?;
    print(&format!("listening on http://{}/metrics", server.server_addr()))?;
    let (to, mut scrapes) = mpsc::channel(MOST_SCRAPES);
    thread::spawn(move || server.incoming_requests().for_each(|request| accept(request, &to)));
    while let Some(scrape) = scrapes.recv().await {
        let metrics = collect(&client, args.metrics.resources).await;
        respond(scrape, answer(200, &metrics, "text/plain; version=0.0.4; charset=utf-8"));
    }
    Err(Error::new(Failure::System, "the HTTP server has ended").into())
}

fn accept(request: Request, to: &Sender<Request>) {
    let refusal = match (request.method(), request.url().split('?').next()) {
        (Method::Get | Method::Head, Some("/metrics")) => match to.try_send(request) {
            Ok(()) => return,
            Err(why) => return respond(why.into_inner(), answer(503, "too many scrapes\n", "text/plain")),
        },
        (Method::Get, Some("/")) => answer(200, "<a href=\"/metrics\">dlock's metrics</a>\n", "text/html"),
        (Method::Get | Method::Head, _) => answer(404, "the metrics are at /metrics\n", "text/plain"),
        _ => answer(405, "only GET\n", "text/plain"),
    };
    respond(request, refusal);
}

fn answer(code: u16, text: &str, kind: &str) -> Response<Cursor<Vec<u8>>> {
    let header = Header::from_bytes("Content-Type", kind).into_iter();
    header.fold(Response::from_string(text).with_status_code(code), Response::with_header)
}

/// In a thread of its own: a peer that does not read must not hold up the others.
fn respond(request: Request, answer: Response<Cursor<Vec<u8>>>) {
    thread::spawn(move || request.respond(answer));
}
