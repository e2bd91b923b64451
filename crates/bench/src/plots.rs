//! Plots of the results, drawn from the JSON of the reports: they can be drawn again without measuring.

use std::io::{Error, Result};
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

use crate::table::si;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// With whatever error the plotting library returns.
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

const WIDTH: u32 = 900;
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const THEIRS: RGBColor = RGBColor(0x9a, 0x9a, 0x9a);
const TEXT: (&str, u32) = ("sans-serif", 14);

/// Draws the reports that have a plot, each into one file named after its title.
pub fn draw(server: &str, reports: &[Value], folder: &Path) -> Result<Vec<String>> {
    std::fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for report in reports {
        let title = text(report, "title");
        let file = format!("{}.svg", slug(title));
        let path = folder.join(&file);
        let title = format!("{title} ({server})");
        let drawn = if report["sizes"].is_array() {
            growth(&path, &title, list(report, "sizes"))
        } else if report["numbers"].is_array() {
            crowd(&path, &title, list(report, "numbers"), list(report, "operations"))
        } else if report["contenders"][0]["server_us_per_pair"].is_number() {
            ratios(&path, &title, list(report, "contenders"))
        } else if report["contenders"][0]["wait_us"].is_object() {
            let of = |contender: &Value, field: &str| number(&contender["wait_us"][field]);
            let below = "wait for the lock, ms (logarithmic): p50 o, p99 x, longest |";
            times(&path, &title, list(report, "contenders"), below, of)
        } else if report["contenders"][0]["p99_us"].is_number() {
            let of = |contender: &Value, field: &str| number(&contender[format!("{field}_us")]);
            times(&path, &title, list(report, "contenders"), "ms (logarithmic): p50 o, p99 x", of)
        } else {
            continue;
        };
        drawn.map_err(|why| Error::other(format!("{}: {why}", path.display())))?;
        files.push(file);
    }
    Ok(files)
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// "Pairs, depth 32, nothing kept" as a file name: "pairs-depth-32-nothing-kept".
fn slug(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

fn colour(name: &str) -> RGBColor {
    if name.starts_with("dlock") { OURS } else { THEIRS }
}

/// A row per contender: its name on the left, and what `draw` puts at its height.
fn rows<'a, X>(
    area: &Area<'a>,
    title: &str,
    contenders: &[Value],
    (below, x): (&str, X),
    draw: impl Fn(&mut Chart<'_, 'a, X::CoordDescType>, &Value, f64) -> Drawn,
) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(45)
        .y_label_area_size(330)
        .build_cartesian_2d(x, contenders.len() as f64..0.0)?;
    // With more labels, a logarithmic scale gets nine in each decade, and they overlap.
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().y_labels(0).x_labels(6).max_light_lines(1);
    mesh.x_desc(below).label_style(TEXT).draw()?;
    let right = Pos::new(HPos::Right, VPos::Center);
    let left_edge = chart.plotting_area().get_pixel_range().0.start;
    for (nth, contender) in contenders.iter().enumerate() {
        let (name, y) = (text(contender, "contender"), nth as f64 + 0.5);
        let (_, height) = chart.backend_coord(&(chart.x_range().start, y));
        let style = TextStyle::from(TEXT).pos(right).color(&BLACK);
        area.draw(&Text::new(name.to_owned(), (left_edge - 8, height), style))?;
        draw(&mut chart, contender, y)?;
    }
    area.present()?;
    Ok(())
}

type Chart<'c, 'a, X> =
    ChartContext<'c, SVGBackend<'a>, Cartesian2d<X, plotters::coord::types::RangedCoordf64>>;

fn height_of(contenders: &[Value]) -> u32 {
    110 + 42 * contenders.len() as u32
}

/// Bars of medians, with the spread of the rounds.
fn ratios(path: &Path, title: &str, contenders: &[Value]) -> Drawn {
    let area = SVGBackend::new(path, (WIDTH, height_of(contenders))).into_drawing_area();
    let most = contenders.iter().map(|one| number(&one["ratio"]["max"])).fold(1.0, f64::max);
    let below = "pairs per second, ratio to SET NX PX + DEL in the same round: median, least and greatest";
    rows(&area, title, contenders, (below, 0.0..most * 1.05), |chart, contender, y| {
        let of = |field: &str| number(&contender["ratio"][field]);
        let bar = [(0.0, y - 0.3), (of("median"), y + 0.3)];
        chart.draw_series([Rectangle::new(bar, colour(text(contender, "contender")).mix(0.75).filled())])?;
        chart.draw_series([PathElement::new([(of("min"), y), (of("max"), y)], BLACK.stroke_width(1))])?;
        Ok(())
    })
}

/// Times on a logarithmic scale: p50, p99 and, where known, the longest. `of` returns them in us.
fn times(
    path: &Path,
    title: &str,
    contenders: &[Value],
    below: &str,
    of: impl Fn(&Value, &str) -> f64,
) -> Drawn {
    let area = SVGBackend::new(path, (WIDTH, height_of(contenders))).into_drawing_area();
    let ms = |contender: &Value, field: &str| of(contender, field) / 1e3;
    let far = |contender: &Value| ms(contender, "max").max(ms(contender, "p99"));
    let least = contenders.iter().map(|one| ms(one, "p50")).fold(f64::MAX, f64::min);
    let most = contenders.iter().map(far).fold(least, f64::max);
    let scale: Range<f64> = (least / 2.0).max(1e-4)..most * 2.0;
    rows(&area, title, contenders, (below, scale.log_scale()), |chart, contender, y| {
        let style = colour(text(contender, "contender")).stroke_width(2);
        let (p50, p99, far) = (ms(contender, "p50"), ms(contender, "p99"), far(contender));
        chart.draw_series([PathElement::new([(p50, y), (far, y)], style.stroke_width(1))])?;
        chart.draw_series([Circle::new((p50, y), 5, style.filled())])?;
        chart.draw_series([Cross::new((p99, y), 5, style)])?;
        if ms(contender, "max") > 0.0 {
            chart.draw_series([PathElement::new([(far, y - 0.2), (far, y + 0.2)], style)])?;
        }
        Ok(())
    })
}

/// How the cost of a pair grows with the number of holds.
fn growth(path: &Path, title: &str, sizes: &[Value]) -> Drawn {
    let lines =
        [("dlock", "dlock_us_per_pair"), ("SET NX PX + DEL", "set_us_per_pair")].map(|(name, field)| {
            let points = sizes.iter().map(|one| (number(&one["holds"]), number(&one[field]))).collect();
            Line { name, colour: colour(name), points }
        });
    curves(path, title, ["holds (logarithmic)", "server us per pair"], 0.0..highest(&lines) * 1.15, &lines)
}

/// What operations cost by how many share a key. Where the cost grew with that number, its line would rise by
/// a decade in each decade.
fn crowd(path: &Path, title: &str, numbers: &[Value], operations: &[Value]) -> Drawn {
    let lines = operations.iter().enumerate().map(|(nth, operation)| {
        let points = numbers.iter().zip(list(operation, "server_us"));
        let points = points.map(|(n, us)| (number(n), number(us).max(0.01))).collect();
        let (red, green, blue) = Palette99::pick(nth).rgb();
        Line { name: text(operation, "operation"), colour: RGBColor(red, green, blue), points }
    });
    let lines: Vec<_> = lines.collect();
    let all = lines.iter().flat_map(|line| &line.points).map(|(_, us)| *us);
    let below = 10_f64.powf(all.fold(1.0, f64::min).log10().floor());
    // With room for the legend.
    let above = 10_f64.powf(highest(&lines).log10().ceil() + 2.0);
    curves(path, title, ["n (logarithmic)", "server us (logarithmic)"], (below..above).log_scale(), &lines)
}

/// What a curve goes through.
struct Line<'v> {
    name: &'v str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

fn highest(lines: &[Line<'_>]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(1.0, f64::max)
}

/// Curves over a logarithmic scale of numbers.
fn curves<Y>(path: &Path, title: &str, [below, left]: [&str; 2], y: Y, lines: &[Line<'_>]) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let area = SVGBackend::new(path, (WIDTH, 380)).into_drawing_area();
    area.fill(&WHITE)?;
    let points = lines.first().map_or(&[][..], |line| &line.points);
    let range = points.first().map_or(1.0, |first| first.0)..points.last().map_or(10.0, |last| last.0);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(45)
        .y_label_area_size(60)
        .build_cartesian_2d(range.log_scale(), y)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(below).x_label_formatter(&|n| si(*n)).max_light_lines(1);
    mesh.y_desc(left).label_style(TEXT).draw()?;
    for Line { name, colour, points } in lines {
        let style = colour.stroke_width(2);
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, style.filled())))?;
        let drawn = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        drawn.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).border_style(THEIRS);
    legend.label_font(TEXT).draw()?;
    area.present()?;
    Ok(())
}
