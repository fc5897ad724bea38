//! Reads the plain part of JSON; `None` everywhere means: this is for the strict reader to judge.

/// Unknown members that an object may have here.
const MAX_UNKNOWN: usize = 8;

/// A place in a text.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Octets that are left.
    pub(super) const fn left(&self) -> usize {
        self.text.len() - self.at
    }

    /// How many items an array here has, where they are strings of `digits` octets without spaces between
    /// them, and at most `most`; a guess, for room to be made.
    pub(super) fn guess_items(&self, digits: usize, most: usize) -> usize {
        let item = digits + 3;
        (1..most).find(|n| self.text.get(self.at + n * item) != Some(&b',')).unwrap_or(most)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Goes past spaces and one octet, which must be this.
    fn take(&mut self, octet: u8) -> Option<()> {
        self.take_if(octet).then_some(())
    }

    fn take_if(&mut self, octet: u8) -> bool {
        self.skip_space();
        let there = self.peek() == Some(octet);
        self.at += usize::from(there);
        there
    }

    /// The end of the text.
    pub(super) fn end(mut self) -> Option<()> {
        self.skip_space();
        (self.left() == 0).then_some(())
    }

    /// An object; `member` reads the value of each member, whose names it keeps from coming twice.
    pub(super) fn object(&mut self, mut member: impl FnMut(&mut Self, &'a [u8]) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take_if(b'}') {
            return Some(());
        }
        loop {
            let name = self.plain()?;
            self.take(b':')?;
            member(self, name)?;
            if !self.take_if(b',') {
                return self.take(b'}');
            }
        }
    }

    /// An array; `item` reads each item.
    pub(super) fn array(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if self.take_if(b']') {
            return Some(());
        }
        loop {
            item(self)?;
            if !self.take_if(b',') {
                return self.take(b']');
            }
        }
    }

    /// A string of printable ASCII without escapes.
    pub(super) fn string(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.plain()?).ok()
    }

    /// The octets of such a string.
    fn plain(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let rest = self.text.get(self.at..)?;
        let length = rest.iter().position(|&c| !(0x20..0x7f).contains(&c) || c == b'"' || c == b'\\')?;
        if rest[length] != b'"' {
            return None;
        }
        self.at += length + 1;
        Some(&rest[..length])
    }

    /// A string of exactly 64 hex digits.
    pub(super) fn hex32(&mut self) -> Option<[u8; 32]> {
        super::hex::decode32(self.quoted()?)
    }

    /// A string of exactly 32 hex digits.
    pub(super) fn hex16(&mut self) -> Option<[u8; 16]> {
        super::hex::decode16(self.quoted()?)
    }

    /// `N` octets between quotation marks, whatever they are.
    fn quoted<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        self.take(b'"')?;
        let (octets, rest) = self.text.get(self.at..)?.split_first_chunk::<N>()?;
        if rest.first() != Some(&b'"') {
            return None;
        }
        self.at += N + 1;
        Some(octets)
    }

    /// An unsigned integer of at most 15 digits, which is below 2^53, without fraction or exponent.
    pub(super) fn integer(&mut self) -> Option<u64> {
        self.skip_space();
        let (value, digits) = self.digits()?;
        let more = matches!(self.peek(), Some(b'0'..=b'9' | b'.' | b'e' | b'E'));
        (!more && digits <= 15).then_some(value)
    }

    pub(super) fn integer32(&mut self) -> Option<u32> {
        u32::try_from(self.integer()?).ok()
    }

    /// The value of at most 15 digits, which are no `0` before another digit.
    fn digits(&mut self) -> Option<(u64, usize)> {
        let rest = self.text.get(self.at..)?;
        let length = rest.iter().take(16).take_while(|c| c.is_ascii_digit()).count();
        let zeros = length > 1 && rest[0] == b'0';
        if length == 0 || length > 15 || zeros {
            return None;
        }
        self.at += length;
        let value = rest[..length].iter().fold(0, |value, c| value * 10 + u64::from(c - b'0'));
        Some((value, length))
    }

    /// An unsigned number without exponent.
    pub(super) fn number(&mut self) -> Option<f64> {
        self.skip_space();
        let start = self.at;
        let (value, _) = self.digits()?;
        match self.peek() {
            Some(b'0'..=b'9' | b'e' | b'E') => return None,
            Some(b'.') => {}
            // Fifteen digits are below 2^53: the double is exact.
            _ => return Some(value as f64),
        }
        self.at += 1;
        let rest = self.text.get(self.at..)?;
        let length = rest.iter().take_while(|c| c.is_ascii_digit()).count();
        if length == 0 || matches!(rest.get(length), Some(b'e' | b'E')) {
            return None;
        }
        self.at += length;
        std::str::from_utf8(self.text.get(start..self.at)?).ok()?.parse().ok()
    }

    /// A string, number, `true`, `false` or `null` that means nothing here.
    fn skip_scalar(&mut self) -> Option<()> {
        self.skip_space();
        match self.peek()? {
            b'"' => self.plain().map(|_| ()),
            b'0'..=b'9' => self.integer().map(|_| ()),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => None,
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }
}

/// Takes a member's value, which must not have come before.
pub(super) fn once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

/// The names of unknown members, which must not come twice either.
#[derive(Debug, Default)]
pub(super) struct Unknown<'a> {
    names: [&'a [u8]; MAX_UNKNOWN],
    count: usize,
}

impl<'a> Unknown<'a> {
    pub(super) fn skip(&mut self, reader: &mut Reader<'a>, name: &'a [u8]) -> Option<()> {
        if self.names[..self.count].contains(&name) {
            return None;
        }
        *self.names.get_mut(self.count)? = name;
        self.count += 1;
        reader.skip_scalar()
    }
}
