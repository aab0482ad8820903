//! Mutant schemata: writes many changes into one text, each behind a switch that is read at run time. One build then serves all
//! of them, and a change costs only the run of its tests.

use super::points::{Form, Point, on_one_line};
use anyhow::Result;
use std::ops::Range;

/// A source file with switches. Line numbers are unchanged.
pub(crate) struct Switched {
    pub(crate) text: String,
    /// The switches in the new text, the inner ones of nested switches first.
    places: Vec<Place>,
}

struct Place {
    number: usize,
    whole: Range<usize>,
    /// The inserted text, before and after the original.
    inserted: [Range<usize>; 2],
}

/// One insertion of text.
struct Insertion<'a> {
    at: usize,
    /// The order at one position: ends of earlier ranges, then points without an extent, then starts.
    order: (u8, usize, isize),
    text: &'a str,
    of: (usize, usize),
}

impl Switched {
    /// Writes the points into the text. Each has a number, which is the number of its switch.
    pub(crate) fn new(text: &str, points: &[(usize, &Point)]) -> Result<Self> {
        let texts = points.iter().map(|(number, point)| around(text, *number, point));
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let mut insertions = Vec::new();
        for (index, ((_, point), (before, after))) in points.iter().zip(&texts).enumerate() {
            let (Range { start, end }, rank) = (point.outer.clone(), index as isize);
            let (first, second) = match start == end {
                true => ((1, 0, rank), (1, 0, rank)),
                // Of two ranges that end here, the one that began later is inside; for starts the order is reversed.
                false => ((2, usize::MAX - end, rank), (0, usize::MAX - start, -rank)),
            };
            insertions.push(Insertion { at: start, order: first, text: before, of: (index, 0) });
            insertions.push(Insertion { at: end, order: second, text: after, of: (index, 1) });
        }
        insertions.sort_by_key(|insertion| (insertion.at, insertion.order));
        let mut inserted = vec![[0..0, 0..0]; points.len()];
        let (mut written, mut from) = (String::new(), 0);
        for Insertion { at, text: new, of: (index, side), .. } in insertions {
            written.push_str(&text[from..at]);
            inserted[index][side] = written.len()..written.len() + new.len();
            written.push_str(new);
            from = at;
        }
        written.push_str(&text[from..]);
        let mut places: Vec<Place> = points
            .iter()
            .zip(inserted)
            .map(|((number, _), inserted)| {
                let whole = inserted[0].start..inserted[1].end;
                Place { number: *number, whole, inserted }
            })
            .collect();
        places.sort_by_key(|place| place.whole.len());
        Ok(Self { text: written, places })
    }

    /// The switches that cause a compiler error in this range: those whose inserted text is in it, or else the innermost ones
    /// around it.
    pub(crate) fn at(&self, range: &Range<usize>) -> Vec<usize> {
        let meets =
            |place: &Range<usize>| place.start < range.end.max(range.start + 1) && range.start < place.end;
        let own = self.places.iter().filter(|place| place.inserted.iter().any(meets));
        let own: Vec<usize> = own.map(|place| place.number).collect();
        if !own.is_empty() {
            return own;
        }
        let around = self.places.iter().find(|place| meets(&place.whole));
        around.map(|place| place.number).into_iter().collect()
    }

    /// All switches in this range or around it.
    pub(crate) fn near(&self, range: &Range<usize>) -> Vec<usize> {
        let near =
            self.places.iter().filter(|place| place.whole.start < range.end && range.start < place.whole.end);
        near.map(|place| place.number).collect()
    }
}

/// The text before a point and after it.
fn around(text: &str, number: usize, point: &Point) -> Result<(String, String)> {
    let switch = format!("::gpumem_mutant::is({number})");
    Ok(match point.form {
        Form::Expression => {
            let (edit, new) = &point.edit;
            let changed =
                format!("{}{new}{}", &text[point.outer.start..edit.start], &text[edit.end..point.outer.end]);
            (format!("(if {switch} {{ {} }} else {{ ", on_one_line(&changed)?), " })".into())
        }
        Form::Statement => (format!("if !{switch} {{ "), " }".into()),
        Form::Entry => (format!(" if {switch} {{{} }}", point.edit.1), String::new()),
        Form::Arm => (format!(" if !{switch}"), String::new()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::points::find;

    fn switched(text: &str, choose: impl Fn(&Point) -> bool) -> Switched {
        let points = find(text).unwrap();
        let chosen: Vec<(usize, &Point)> = points.iter().filter(|point| choose(point)).enumerate().collect();
        Switched::new(text, &chosen).unwrap()
    }

    #[test]
    fn each_form_is_written() {
        let text = "fn f() -> bool { a(); a < // why\n b }";
        let only = |form| switched(text, move |point: &Point| point.form == form).text;
        let is = |number| format!("::gpumem_mutant::is({number})");
        assert_eq!(
            only(Form::Statement),
            format!("fn f() -> bool {{ if !{} {{ a(); }} a < // why\n b }}", is(0))
        );
        let less_or_equal = switched(text, |point| point.edit.1 == "<=").text;
        assert_eq!(
            less_or_equal,
            format!("fn f() -> bool {{ a(); (if {} {{ a <= b }} else {{ a < // why\n b }}) }}", is(0))
        );
        let early = switched(text, |point| point.edit.1.contains("true")).text;
        assert_eq!(
            early,
            format!("fn f() -> bool {{ if {} {{ return true; }} a(); a < // why\n b }}", is(0))
        );
        let text = "fn f() -> &'static str { match a { A => b, _ => c } }";
        let arm = switched(text, |point| point.form == Form::Arm).text;
        assert_eq!(arm, format!("fn f() -> &'static str {{ match a {{ A if !{} => b, _ => c }} }}", is(0)));
    }

    /// With all switches of a text at once, the result is valid Rust with unchanged line numbers.
    #[test]
    fn nested_switches_are_rust() {
        let text = "fn f(a: u8) -> bool {\n    if !(a + 1 < 2 && a.min(3) == 4) {\n        g(a)?.h();\n    }\n\
                    match a { 1 if a < 3 => !b, _ => c }\n}\n";
        let switched = switched(text, |_| true);
        syn::parse_file(&switched.text).unwrap_or_else(|error| panic!("{error}: {}", switched.text));
        assert_eq!(switched.text.matches('\n').count(), text.matches('\n').count());
        let count = find(text).unwrap().len();
        assert!(switched.text.matches("::gpumem_mutant::is(").count() >= count);
    }

    #[test]
    fn an_error_is_traced_to_its_switch() {
        let text = "fn f() -> &'static str { a(b < c); d(e) }";
        let switched = switched(text, |point| ["<=", ""].contains(&point.edit.1.as_str()));
        let place = |part: &str| {
            let start = switched.text.find(part).unwrap();
            start..start + part.len()
        };
        let number_of = |new: &str| {
            let points = find(text).unwrap();
            points
                .iter()
                .filter(|point| ["<=", ""].contains(&point.edit.1.as_str()))
                .position(|p| p.edit.1 == new)
        };
        assert_eq!(switched.at(&place("b <= c")), [number_of("<=").unwrap()]);
        assert_eq!(switched.at(&place("b < c")), [number_of("<=").unwrap()]);
        assert_eq!(switched.at(&place("d(e)")), [0; 0]);
        assert_eq!(switched.near(&place("b < c")).len(), 2);
    }
}
