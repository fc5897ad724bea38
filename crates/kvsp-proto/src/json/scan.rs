//! The validating scan: everything that I-JSON forbids and serde_json lets through.

use std::borrow::Cow;
use std::collections::HashSet;

use super::{JsonError, MAX_DEPTH, MAX_INTEGER};

/// What a scan found out about a valid text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scanned {
    /// Some integer was written with a fraction, an exponent or as `-0`.
    pub(super) integral_fractions: bool,
}

/// Scans one text. A lone surrogate is reported only where nothing else is wrong.
pub(super) fn scan(text: &[u8]) -> Result<Scanned, JsonError> {
    if text.starts_with(b"\xEF\xBB\xBF") {
        return Err(JsonError::Malformed("a byte order mark at octet 0".to_owned()));
    }
    if let Err(e) = std::str::from_utf8(text) {
        return Err(JsonError::Malformed(format!("not UTF-8 at octet {}", e.valid_up_to())));
    }
    let mut scanner = Scanner {
        text,
        at: 0,
        open: Vec::with_capacity(MAX_DEPTH),
        names: Vec::new(),
        integral_fractions: false,
        lone_surrogate: false,
    };
    match scanner.document() {
        Ok(()) if scanner.lone_surrogate => Err(JsonError::LoneSurrogate),
        Ok(()) => Ok(Scanned { integral_fractions: scanner.integral_fractions }),
        Err(what) => Err(JsonError::Malformed(format!("{what} at octet {}", scanner.at))),
    }
}

type What = &'static str;

/// Above this many members an object's names go into a set: below, comparing them is faster.
const FEW_NAMES: usize = 16;

/// A container that is not closed yet.
enum Open<'a> {
    Array,
    /// Its names so far are `names[first..]`, and in the set once there are more than a few.
    Object {
        first: usize,
        set: Option<HashSet<Cow<'a, [u8]>>>,
    },
}

/// What may stand next.
#[derive(Clone, Copy)]
enum Next {
    Value,
    ValueOrEnd,
    Name,
    NameOrEnd,
    CommaOrEnd,
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    open: Vec<Open<'a>>,
    names: Vec<Cow<'a, [u8]>>,
    integral_fractions: bool,
    lone_surrogate: bool,
}

impl<'a> Scanner<'a> {
    fn document(&mut self) -> Result<(), What> {
        let mut next = Next::Value;
        loop {
            self.skip_space();
            let octet = self.peek().ok_or("the end of the text where more is needed")?;
            next = match (next, octet) {
                (Next::ValueOrEnd, b']') | (Next::NameOrEnd, b'}') => self.close(octet)?,
                (Next::Value | Next::ValueOrEnd, _) => self.value(octet)?,
                (Next::Name | Next::NameOrEnd, b'"') => self.member_name()?,
                (Next::Name | Next::NameOrEnd, _) => return Err("no member name"),
                (Next::CommaOrEnd, b',') => {
                    self.at += 1;
                    match self.open.last() {
                        Some(Open::Object { .. }) => Next::Name,
                        _ => Next::Value,
                    }
                }
                (Next::CommaOrEnd, _) => self.close(octet)?,
            };
            if self.open.is_empty() {
                self.skip_space();
                return if self.at == self.text.len() { Ok(()) } else { Err("more than one value") };
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, octet: u8) -> Result<Next, What> {
        match octet {
            b'{' => self.enter(Open::Object { first: self.names.len(), set: None }, Next::NameOrEnd),
            b'[' => self.enter(Open::Array, Next::ValueOrEnd),
            b'"' => self.string().map(|()| Next::CommaOrEnd),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => Err("no value"),
        }
    }

    fn enter(&mut self, container: Open<'a>, next: Next) -> Result<Next, What> {
        if self.open.len() == MAX_DEPTH {
            return Err("nesting deeper than 32");
        }
        self.at += 1;
        self.open.push(container);
        Ok(next)
    }

    fn close(&mut self, octet: u8) -> Result<Next, What> {
        match (self.open.last(), octet) {
            (Some(Open::Array), b']') => {}
            (Some(Open::Object { first, .. }), b'}') => self.names.truncate(*first),
            _ => return Err("neither a comma nor the end of the array or object"),
        }
        self.open.pop();
        self.at += 1;
        Ok(Next::CommaOrEnd)
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<Next, What> {
        if !self.text[self.at..].starts_with(word) {
            return Err("no value");
        }
        self.at += word.len();
        Ok(Next::CommaOrEnd)
    }

    fn number(&mut self) -> Result<Next, What> {
        let start = self.at;
        let negative = self.peek() == Some(b'-');
        self.at += usize::from(negative);
        let digits = self.digits()?;
        if digits.len() > 1 && digits[0] == b'0' {
            return Err("a number with a leading zero");
        }
        let mut fraction = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            fraction = true;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
            fraction = true;
        }
        if fraction {
            let literal = std::str::from_utf8(&self.text[start..self.at]).map_err(|_| "no number")?;
            let value = literal.parse::<f64>().ok().filter(|value| value.is_finite());
            let value = value.ok_or("a number beyond the range of a double")?;
            self.integral_fractions |= value.fract() == 0.0;
        } else {
            self.integral_fractions |= negative && digits == b"0";
            if !is_exact(digits) {
                return Err("an integer beyond 2^53-1");
            }
        }
        Ok(Next::CommaOrEnd)
    }

    fn digits(&mut self) -> Result<&'a [u8], What> {
        let text = self.text;
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err("no digit") } else { Ok(&text[start..self.at]) }
    }

    /// A member name, the colon after it, and the check that the object has no such name yet.
    fn member_name(&mut self) -> Result<Next, What> {
        let start = self.at + 1;
        self.string()?;
        let text = self.text;
        let raw = &text[start..self.at - 1];
        let name = if raw.contains(&b'\\') { Cow::Owned(unescape(raw)) } else { Cow::Borrowed(raw) };
        self.remember(name)?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err("no colon after a member name");
        }
        self.at += 1;
        Ok(Next::Value)
    }

    fn remember(&mut self, name: Cow<'a, [u8]>) -> Result<(), What> {
        const DUPLICATE: What = "a duplicate member name";
        let Some(Open::Object { first, set }) = self.open.last_mut() else {
            return Err("no object");
        };
        if let Some(set) = set {
            return if set.insert(name) { Ok(()) } else { Err(DUPLICATE) };
        }
        let names = &self.names[*first..];
        if names.contains(&name) {
            return Err(DUPLICATE);
        }
        if names.len() < FEW_NAMES {
            self.names.push(name);
        } else {
            let mut all: HashSet<_> = self.names.drain(*first..).collect();
            all.insert(name);
            *set = Some(all);
        }
        Ok(())
    }

    /// A string, from its opening quotation mark to past its closing one.
    fn string(&mut self) -> Result<(), What> {
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().position(|&c| !is_plain(c)).unwrap_or(rest.len());
            self.at += plain;
            match self.peek() {
                None => return Err("the end of the text within a string"),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(0..0x20) => return Err("a control character within a string"),
                Some(lead) => {
                    // The text is valid UTF-8, so the sequence is whole.
                    let length = if lead < 0xF0 { 3 } else { 4 };
                    let sequence = &self.text[self.at..(self.at + length).min(self.text.len())];
                    if is_noncharacter_sequence(sequence) {
                        return Err("a noncharacter");
                    }
                    self.at += length;
                }
            }
        }
    }

    fn escape(&mut self) -> Result<(), What> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => self.unicode_escape(),
            _ => Err("an unknown escape"),
        }
    }

    fn unicode_escape(&mut self) -> Result<(), What> {
        let unit = hex4(&self.text[self.at + 2..]).ok_or("an escape without four hex digits")?;
        let (code, length) = match low_surrogate(unit, &self.text[self.at + 6..]) {
            Some(low) => (combine(unit, low), 12),
            None => (u32::from(unit), 6),
        };
        if (0xD800..0xE000).contains(&code) {
            self.lone_surrogate = true;
        }
        if is_noncharacter(code) {
            return Err("a noncharacter");
        }
        self.at += length;
        Ok(())
    }
}

/// Octets of a string that need no look: neither its end, an escape, a control character, nor the
/// lead octet of a sequence that may be a noncharacter.
const fn is_plain(octet: u8) -> bool {
    !matches!(octet, 0..0x20 | b'"' | b'\\' | 0xEF..)
}

fn is_exact(digits: &[u8]) -> bool {
    // Sixteen digits always fit a u64.
    digits.len() <= 16
        && digits.iter().fold(0_u64, |value, digit| value * 10 + u64::from(digit - b'0')) <= MAX_INTEGER
}

const fn is_noncharacter(code: u32) -> bool {
    matches!(code, 0xFDD0..=0xFDEF) || code & 0xFFFE == 0xFFFE
}

fn is_noncharacter_sequence(sequence: &[u8]) -> bool {
    match *sequence {
        [0xEF, 0xB7, last] => matches!(last, 0x90..=0xAF),
        [0xEF, 0xBF, last] => last >= 0xBE,
        [_, second, 0xBF, last] => second & 0x0F == 0x0F && last >= 0xBE,
        _ => false,
    }
}

/// The UTF-16 code unit of four hex digits.
fn hex4(text: &[u8]) -> Option<u16> {
    let digits = text.get(..4)?;
    digits.iter().try_fold(0_u16, |unit, &c| Some(unit << 4 | char::from(c).to_digit(16)? as u16))
}

/// The low surrogate escaped right after the high surrogate `high`, if they are a pair.
fn low_surrogate(high: u16, after: &[u8]) -> Option<u16> {
    if !(0xD800..0xDC00).contains(&high) || !after.starts_with(b"\\u") {
        return None;
    }
    hex4(&after[2..]).filter(|low| (0xDC00..0xE000).contains(low))
}

fn combine(high: u16, low: u16) -> u32 {
    0x1_0000 + ((u32::from(high) & 0x3FF) << 10 | (u32::from(low) & 0x3FF))
}

/// The octets of a string that has been scanned, for comparison alone: a lone surrogate becomes the
/// three octets that UTF-8 would have for it.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(&octet) = raw.get(at) {
        let escaped = raw.get(at + 1).copied().filter(|_| octet == b'\\');
        at += 2;
        match escaped {
            None => {
                out.push(octet);
                at -= 1;
            }
            Some(b'b') => out.push(8),
            Some(b'f') => out.push(12),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b't') => out.push(b'\t'),
            Some(b'u') => {
                let unit = hex4(&raw[at..]).unwrap_or_default();
                at += 4;
                let mut code = u32::from(unit);
                if let Some(low) = low_surrogate(unit, &raw[at..]) {
                    code = combine(unit, low);
                    at += 6;
                }
                push_code(&mut out, code);
            }
            Some(other) => out.push(other),
        }
    }
    out
}

fn push_code(out: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend([
            0xE0 | (code >> 12) as u8,
            0x80 | (code >> 6 & 0x3F) as u8,
            0x80 | (code & 0x3F) as u8,
        ]),
    }
}
