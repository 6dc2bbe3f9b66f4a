//! Secrets in YAML, and so in JSON: by the names under which they stand, and each replaced where it stands.

use std::{collections::HashMap, ops::Range};

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::{
    MARK,
    assignments::{self, Wording},
    names::{NAMED, Reach, is_harmless, plain, reach},
};

/// Names of a scalar that says what the value beside it is: `{name: Authorization, value: …}`.
const NAMING: &[&str] = &["name", "key", "header"];

/// The text without what stands under names that announce secrets, and without scalars in which `is_known` knows one.
pub(super) fn redact(text: &str, is_known: impl Fn(&str) -> bool) -> Redacted {
    let mut reader = Reader { text, is_known, pieces: Vec::new(), frames: Vec::new(), anchors: HashMap::new() };
    let mut redacted: fn(String) -> Redacted = Redacted::Whole;
    for next in Parser::new_from_str(text) {
        match next {
            Ok((event, span)) => reader.take(&event, &span),
            Err(_) => {
                redacted = Redacted::Beginning;
                break;
            }
        }
    }
    while !reader.frames.is_empty() {
        reader.close();
    }
    reader.follow_aliases();
    redacted(reader.render())
}

/// How much of a text was understood.
#[derive(Debug)]
pub(super) enum Redacted {
    /// All of it.
    Whole(String),
    /// It is no YAML from some place on.
    Beginning(String),
}

/// A part of the text that may hold a secret.
struct Piece {
    place: Range<usize>,
    form: Form,
    fate: Fate,
    /// Parts of it that go even if it stays.
    parts: Vec<Range<usize>>,
}

impl Piece {
    /// The anchor for which it stands.
    fn target(&self) -> Option<usize> {
        match self.form {
            Form::Alias(target) => Some(target),
            Form::Inline | Form::Block | Form::Aside => None,
        }
    }
}

/// How a piece is written, which decides how it is replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    /// A scalar in a line, quoted or not.
    Inline,
    /// The lines of a block scalar.
    Block,
    /// A name or a comment: it never goes as a whole.
    Aside,
    /// It stands for the node of this anchor.
    Alias(usize),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Stays,
    Goes,
    /// It stays under whatever name it stands.
    Harmless,
}

/// A list or a map that is open.
struct Frame {
    kind: Kind,
    /// What the names above it announce.
    reach: Reach,
    anchor: usize,
    /// The first of its pieces.
    first: usize,
}

enum Kind {
    List {
        /// What the item before announces, if it is an argument such as `--password`.
        before: Reach,
    },
    Map(Map),
}

#[derive(Default)]
struct Map {
    /// The name under which it stands, [`plain`].
    parent: String,
    awaits: Awaits,
    /// Whether one of its values names a secret.
    names_secret: bool,
    /// The pieces of the values that would be it.
    named: Vec<Range<usize>>,
}

#[derive(Default)]
enum Awaits {
    #[default]
    Name,
    Value {
        name: String,
        reach: Reach,
        first: usize,
    },
}

struct Reader<'t, K> {
    text: &'t str,
    is_known: K,
    pieces: Vec<Piece>,
    frames: Vec<Frame>,
    /// The pieces of anchored nodes.
    anchors: HashMap<usize, Range<usize>>,
}

impl<K: Fn(&str) -> bool> Reader<'_, K> {
    fn take(&mut self, event: &Event<'_>, span: &Span) {
        let place = span.byte_range().filter(|place| self.text.get(place.clone()).is_some()).unwrap_or_default();
        match event {
            Event::Scalar(value, style, anchor, _) => self.scalar(value, *style, *anchor, place),
            Event::Alias(target) => {
                let fate = if self.reach_here() == Reach::Nothing { Fate::Stays } else { Fate::Goes };
                self.pieces.push(Piece {
                    place: place.start..place.start,
                    form: Form::Alias(*target),
                    fate,
                    parts: Vec::new(),
                });
                self.node_ends(None);
            }
            Event::SequenceStart(_, anchor, _) => self.open(Kind::List { before: Reach::Nothing }, *anchor),
            Event::MappingStart(_, anchor, _) => {
                let parent = self.name_here();
                self.open(Kind::Map(Map { parent, ..Map::default() }), *anchor);
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Comment(..) => {
                let parts = self.assignments(place.clone(), Wording::Phrase);
                self.pieces.push(Piece { place, form: Form::Aside, fate: Fate::Stays, parts });
            }
            // Events of the foreign enum that are no node; unresolved aliases are errors.
            _ => {}
        }
    }

    fn scalar(&mut self, value: &str, style: ScalarStyle, anchor: usize, place: Range<usize>) {
        let first = self.pieces.len();
        if self.is_name_here() {
            // A merge key announces nothing; what is merged speaks for itself.
            self.pieces.push(Piece { place, form: Form::Aside, fate: Fate::Stays, parts: Vec::new() });
            self.name(value);
        } else {
            let piece = self.value(value, style, place);
            self.pieces.push(piece);
            self.node_ends(Some(value));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, first..self.pieces.len());
        }
    }

    fn value(&self, value: &str, style: ScalarStyle, place: Range<usize>) -> Piece {
        let inner = match style {
            ScalarStyle::Plain => place.clone(),
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                place.start + 1..place.end.saturating_sub(1).max(place.start + 1)
            }
            ScalarStyle::Literal | ScalarStyle::Folded => self.with_indent(place.clone()),
        };
        let (form, is_written_otherwise) = match style {
            ScalarStyle::Plain => (Form::Inline, false),
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => (Form::Inline, self.text[inner.clone()] != *value),
            ScalarStyle::Literal | ScalarStyle::Folded => (Form::Block, false),
        };
        let has_lines = [value, &self.text[inner.clone()]].iter().any(|text| text.trim_end().contains('\n'));
        let wording = if has_lines { Wording::Lines } else { Wording::Phrase };
        let mut parts = Vec::new();
        let fate = if is_harmless(value) {
            Fate::Harmless
        } else if self.reach_here() != Reach::Nothing || (self.is_known)(value) {
            Fate::Goes
        } else if is_written_otherwise {
            if assignments::values(value, wording).is_empty() { Fate::Stays } else { Fate::Goes }
        } else {
            parts = self.assignments(inner, wording);
            Fate::Stays
        };
        Piece { place, form, fate, parts }
    }

    fn assignments(&self, place: Range<usize>, wording: Wording) -> Vec<Range<usize>> {
        let found = assignments::values(&self.text[place.clone()], wording);
        found.into_iter().map(|part| place.start + part.start..place.start + part.end).collect()
    }

    /// The lines of a block scalar, of which the parser leaves out the indentation of the first.
    fn with_indent(&self, place: Range<usize>) -> Range<usize> {
        let before = self.text[..place.start].trim_end_matches(' ');
        if before.ends_with('\n') { before.len()..place.end } else { place }
    }

    /// What the names above the next node announce for it.
    fn reach_here(&self) -> Reach {
        let Some(frame) = self.frames.last() else { return Reach::Nothing };
        let own = match &frame.kind {
            Kind::List { before } => *before,
            Kind::Map(Map { awaits: Awaits::Value { reach, .. }, .. }) => *reach,
            Kind::Map(Map { awaits: Awaits::Name, .. }) => Reach::Nothing,
        };
        if frame.reach == Reach::Tree { Reach::Tree } else { own }
    }

    fn is_name_here(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { kind: Kind::Map(Map { awaits: Awaits::Name, .. }), .. }))
    }

    /// The name of the next node, [`plain`]; items of a list have that of the list.
    fn name_here(&self) -> String {
        self.frames
            .iter()
            .rev()
            .find_map(|frame| match &frame.kind {
                Kind::List { .. } => None,
                Kind::Map(Map { awaits: Awaits::Value { name, .. }, .. }) => Some(plain(name)),
                Kind::Map(Map { awaits: Awaits::Name, .. }) => Some(String::new()),
            })
            .unwrap_or_default()
    }

    /// A scalar was the name of the value to come.
    fn name(&mut self, name: &str) {
        let first = self.pieces.len();
        if let Some(Frame { kind: Kind::Map(map), .. }) = self.frames.last_mut() {
            let reach = reach(name, &map.parent);
            map.awaits = Awaits::Value { name: name.to_owned(), reach, first };
        }
    }

    /// A node has ended: a scalar with this value, or anything else.
    fn node_ends(&mut self, value: Option<&str>) {
        let end = self.pieces.len();
        let Some(frame) = self.frames.last_mut() else { return };
        match &mut frame.kind {
            Kind::List { before } => {
                let argument = value.filter(|value| value.starts_with('-') && !value.contains('='));
                *before = argument.map_or(Reach::Nothing, |argument| reach(argument, ""));
            }
            Kind::Map(map) => match std::mem::take(&mut map.awaits) {
                // A name that is no scalar announces nothing.
                Awaits::Name => map.awaits = Awaits::Value { name: String::new(), reach: Reach::Nothing, first: end },
                Awaits::Value { name, first, .. } => {
                    let name = plain(&name);
                    if NAMED.contains(&name.as_str()) {
                        map.named.push(first..end);
                    }
                    let names_secret = |value| reach(value, "") != Reach::Nothing;
                    map.names_secret |= NAMING.contains(&name.as_str()) && value.is_some_and(names_secret);
                }
            },
        }
    }

    fn open(&mut self, kind: Kind, anchor: usize) {
        let reach = if self.reach_here() == Reach::Tree { Reach::Tree } else { Reach::Nothing };
        self.frames.push(Frame { kind, reach, anchor, first: self.pieces.len() });
    }

    fn close(&mut self) {
        let Some(Frame { kind, reach: _, anchor, first }) = self.frames.pop() else { return };
        if let Kind::Map(Map { names_secret: true, named, .. }) = kind {
            for pieces in named {
                // Aliases among them are followed in the end.
                let _ = self.condemn(pieces);
            }
        }
        if anchor != 0 {
            self.anchors.insert(anchor, first..self.pieces.len());
        }
        self.node_ends(None);
    }

    /// These pieces go, unless they are harmless; says for which anchors some of them stand.
    fn condemn(&mut self, pieces: Range<usize>) -> Vec<usize> {
        let mut targets = Vec::new();
        for piece in self.pieces.get_mut(pieces).unwrap_or_default() {
            if piece.fate == Fate::Stays && piece.form != Form::Aside {
                piece.fate = Fate::Goes;
                targets.extend(piece.target());
            }
        }
        targets
    }

    /// Where an alias goes, that goes for which it stands.
    fn follow_aliases(&mut self) {
        let going = self.pieces.iter().filter(|piece| piece.fate == Fate::Goes);
        let mut targets: Vec<usize> = going.filter_map(Piece::target).collect();
        while let Some(target) = targets.pop() {
            // Once is enough, so that it is taken out.
            if let Some(pieces) = self.anchors.remove(&target) {
                targets.extend(self.condemn(pieces));
            }
        }
    }

    fn render(mut self) -> String {
        self.pieces.sort_by_key(|piece| piece.place.start);
        let mut rendered = String::with_capacity(self.text.len());
        let quoted = format!("\"{MARK}\"");
        let mut position = 0;
        for piece in &self.pieces {
            let whole = std::slice::from_ref(&piece.place);
            let (places, mark) = match (piece.fate, piece.form) {
                // Quoted, or a parser would take the brackets for a list.
                (Fate::Goes, Form::Inline) => (whole, quoted.as_str()),
                (Fate::Goes, Form::Block) => (whole, MARK),
                (Fate::Goes, Form::Aside | Form::Alias(_)) => (&[][..], MARK),
                (Fate::Stays | Fate::Harmless, _) => (piece.parts.as_slice(), MARK),
            };
            for place in places {
                // The break after a block is not its own.
                let end = place.start + self.text[place.clone()].trim_end().len();
                let start = place.start.max(position);
                if start < end {
                    rendered.push_str(&self.text[position..start]);
                    rendered.push_str(mark);
                    position = end;
                }
            }
        }
        rendered.push_str(&self.text[position..]);
        rendered
    }
}
