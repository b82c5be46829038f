//! Draws the paper's figure 11 as SVG: the part of deletes whose old value is still there, by the age of the delete,
//! both axes logarithmic. Solid lines are pairs of regions, dashed ones the paper's.

use super::{Curve, age_name};
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 60.0;
/// The ends of the vertical axis: a share of 1, and one below which nothing is drawn.
const EXPONENT_MIN: i32 = -7;
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

/// What the paper's text says of its figure: the shares at ages in seconds.
const PAPER: [(&str, &[(u32, f64)]); 2] =
    [("paper, master region", &[(1, 1e-4), (3_600, 1e-5)]), ("paper, replica regions", &[(1, 1e-3), (600, 1e-4)])];

/// Draws the curves.
pub fn draw(curves: &[Curve]) -> String {
    let ages = curves.iter().flat_map(|curve| curve.ages.iter().map(|age| age.age_s));
    let mut ages: Vec<u32> =
        ages.chain(PAPER.iter().flat_map(|(_, points)| points.iter().map(|(age, _)| *age))).collect();
    ages.sort_unstable();
    ages.dedup();
    let (first, last) = (f64::from(ages[0]).ln(), f64::from(ages[ages.len() - 1]).ln());
    let x = |age_s: u32| LEFT + (f64::from(age_s).ln() - first) / (last - first).max(1.0) * (WIDTH - LEFT - RIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    draw_axes(&ages, &x, &mut svg);
    let mut legend = Legend { lines: 0 };
    for (index, curve) in curves.iter().enumerate() {
        let points = curve.ages.iter().filter_map(|age| Some((age.age_s, age.counts.old_share()?)));
        let answered = curve.ages.iter().map(|age| age.counts.answered()).max().unwrap_or_default();
        let name = format!("{} ({answered} deletes)", curve.label());
        draw_line(&name, points, COLOURS[index % COLOURS.len()], "", &x, &mut legend, &mut svg);
    }
    for (name, points) in PAPER {
        draw_line(name, points.iter().copied(), "#888888", " stroke-dasharray=\"5 4\"", &x, &mut legend, &mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The place of a share on the vertical axis; that of its end for a share of 0.
fn y(share: f64) -> f64 {
    let exponent = if share > 0.0 { share.log10().max(f64::from(EXPONENT_MIN)) } else { f64::from(EXPONENT_MIN) };
    TOP + exponent / f64::from(EXPONENT_MIN) * (HEIGHT - TOP - BOTTOM)
}

fn draw_axes(ages: &[u32], x: &impl Fn(u32) -> f64, svg: &mut String) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for exponent in EXPONENT_MIN..=0 {
        let (at, share) =
            (y(10_f64.powi(exponent)), if exponent == EXPONENT_MIN { "0".into() } else { format!("1e{exponent}") });
        let _ = writeln!(svg, "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{share}</text>", LEFT - 8.0, at + 4.0);
    }
    for &age_s in ages {
        let (at, name) = (x(age_s), age_name(age_s));
        let _ = writeln!(svg, "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#dddddd\"/>");
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>", bottom + 18.0);
    }
    let middle = (LEFT + right) / 2.0;
    let _ =
        writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">after the commit</text>", HEIGHT - 16.0);
    let middle = (TOP + bottom) / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">deletes whose old value is still \
         there</text>"
    );
}

/// The names beside the curves.
struct Legend {
    lines: u32,
}

fn draw_line(
    name: &str,
    points: impl Iterator<Item = (u32, f64)>,
    colour: &str,
    dashes: &str,
    x: &impl Fn(u32) -> f64,
    legend: &mut Legend,
    svg: &mut String,
) {
    let points: Vec<(f64, f64)> = points.map(|(age_s, share)| (x(age_s), y(share))).collect();
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
        line.join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let (at, left) = (TOP + 12.0 + f64::from(legend.lines) * 18.0, WIDTH - RIGHT + 10.0);
    let _ = writeln!(
        svg,
        "<line x1=\"{left}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\
         <text x=\"{}\" y=\"{}\" font-size=\"11\">{}</text>",
        left + 18.0,
        left + 24.0,
        at + 4.0,
        escaped(name)
    );
    legend.lines += 1;
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{curves, curves::tests::report};

    #[test]
    fn each_curve_is_a_line_with_its_points() {
        let (_, pairs) = curves(&report([[3, 1], [4, 0], [1_000, 0]]));
        let svg = draw(&pairs);
        assert_eq!(svg.matches("<polyline").count(), 4, "two pairs and two of the paper");
        assert_eq!(svg.matches("<circle").count(), 8);
        assert!(svg.contains("east to west (1000 deletes)"), "{svg}");
        // A share of 1 is at the top, and one of 0 at the end of the axis.
        assert!(svg.contains(&format!("{LEFT:.1},{TOP:.1} ")), "{svg}");
        assert!(svg.contains(&format!(",{:.1}\" fill", HEIGHT - BOTTOM)), "{svg}");
    }

    #[test]
    fn a_state_without_answers_can_be_drawn() {
        let svg = draw(&[]);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
