# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
r"""The compiled loops: what is done for every value of every change, and nothing else.

A few loops are most of what the bridge costs: the WAL's bytes to frames (`cut_frames`), changes
to messages (`encode_run`, with one `RowCode` per table and operation), a snapshot's lines to rows
(`LinePacker`), and messages to NATS's frames (`publish_chain`, `publish_batch`). Each exists in Python too
(`protocol.copyboth`, `runs` and `rowsource`, `snapshot.columns`, `jetstream.frames`), gives the
same there, and is used where this file was not compiled. Nothing is decided here: bytes
go in, bytes come out, and None says that the caller goes the long way, which is the definition of
what is right. A row of 7 columns takes 0.3 us here where the generated Python takes 2.3, one of 60
columns 1 where it takes 17.

Memory is safe by three rules. Whatever comes from a socket is surveyed once before anything is
written, and every size in it is held against the end. What is written never needs more than what
was read, the names and a constant, so there is one bound, computed before the first byte. And no
buffer outlives its call.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from msgpack import unpackb

from bridge.packing import PROBLEMS, Rule

ctypedef unsigned char byte

cdef int OTHER = Rule.OTHER
cdef int TEXT = Rule.TEXT
cdef int INTEGER = Rule.INTEGER
cdef int BOOLEAN = Rule.BOOLEAN
cdef int DATE = Rule.DATE
cdef int TIMESTAMP = Rule.TIMESTAMP
cdef int TIMESTAMPTZ = Rule.TIMESTAMPTZ

cdef enum:
    KEY_AT = 25            # where a frame says what it is, and where its row begins: see `rowparts`
    ROW_AT = 33
    SMALL = 8192           # up to so many bytes are written on the stack
    MOST_DIGITS = 20       # of an integer of 64 bits, and of a row's ordinal
    HEADER = 5             # of a message, of a column, and at most of a string in MessagePack
    BESIDES = 64           # marks, headers and numbers beside what is measured


# --- MessagePack ------------------------------------------------------------------------------

cdef inline byte *put(byte *to, const byte *text, Py_ssize_t size) noexcept:
    memcpy(to, text, size)
    return to + size


cdef inline byte *put_bytes(byte *to, bytes text) noexcept:
    return put(to, <const byte *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef byte *put_number(byte *to, byte mark, uint64_t number, int size) noexcept:
    """Write a mark and the number's lowest bytes, the highest of them first."""
    cdef int n
    to[0] = mark
    for n in range(size):
        to[size - n] = <byte>(number >> (8 * n))
    return to + 1 + size


cdef byte *put_unsigned(byte *to, uint64_t number) noexcept:
    if number < 0x80:
        to[0] = <byte>number
        return to + 1
    if number <= 0xFF:
        return put_number(to, 0xCC, number, 1)
    if number <= 0xFFFF:
        return put_number(to, 0xCD, number, 2)
    if number <= 0xFFFFFFFF:
        return put_number(to, 0xCE, number, 4)
    return put_number(to, 0xCF, number, 8)


cdef byte *put_negative(byte *to, int64_t number) noexcept:
    if number >= -32:
        to[0] = <byte>number
        return to + 1
    if number >= -(1 << 7):
        return put_number(to, 0xD0, <uint64_t>number, 1)
    if number >= -(1 << 15):
        return put_number(to, 0xD1, <uint64_t>number, 2)
    if number >= -(<int64_t>1 << 31):
        return put_number(to, 0xD2, <uint64_t>number, 4)
    return put_number(to, 0xD3, <uint64_t>number, 8)


cdef byte *put_header(byte *to, Py_ssize_t size) noexcept:
    """Write what stands in front of a string."""
    if size < 32:
        to[0] = <byte>(0xA0 | size)
        return to + 1
    if size <= 0xFF:
        return put_number(to, 0xD9, <uint64_t>size, 1)
    if size <= 0xFFFF:
        return put_number(to, 0xDA, <uint64_t>size, 2)
    return put_number(to, 0xDB, <uint64_t>size, 4)


cdef byte *put_count(byte *to, byte few, byte many, Py_ssize_t count) noexcept:
    """Write what stands in front of a map or a list; a table has at most 1,600 columns."""
    if count < 16:
        to[0] = <byte>(few | count)
        return to + 1
    return put_number(to, many, <uint64_t>count, 2)


# --- One value: the rules of `packing` ----------------------------------------------------------

cdef byte *put_integer(byte *to, const byte *text, Py_ssize_t size) noexcept:
    cdef uint64_t number = 0
    cdef Py_ssize_t n, first = 1 if size and text[0] == c"-" else 0
    if size == first or size - first >= MOST_DIGITS:
        return NULL
    for n in range(first, size):
        if text[n] < c"0" or text[n] > c"9":
            return NULL
        number = number * 10 + (text[n] - c"0")
    if not first or not number:
        return put_unsigned(to, number)
    if number > <uint64_t>1 << 63:
        return NULL
    return put_negative(to, <int64_t>(0 - number))


cdef byte *put_boolean(byte *to, const byte *text, Py_ssize_t size) noexcept:
    if size != 1 or (text[0] != c"t" and text[0] != c"f"):
        return NULL
    to[0] = 0xC3 if text[0] == c"t" else 0xC2
    return to + 1


cdef byte *put_timestamp(byte *to, const byte *text, Py_ssize_t size) noexcept:
    if size < 19 or text[10] != c" " or text[size - 1] == c"C":
        return NULL
    to = put(put_header(to, size), text, size)
    (to - size)[10] = c"T"
    return to


cdef byte *put_timestamptz(byte *to, const byte *text, Py_ssize_t size) noexcept:
    if size < 22 or text[10] != c" ":
        return NULL
    if text[size - 3] != c"+" or text[size - 2] != c"0" or text[size - 1] != c"0":
        return NULL
    size -= 2
    to = put(put_header(to, size), text, size)
    (to - size)[10] = c"T"
    (to - 1)[0] = c"Z"
    return to


cdef byte *put_value(byte *to, int rule, const byte *text, Py_ssize_t size) noexcept:
    """Write a value by its column's rule; NULL where it is not of the common sort."""
    if rule == TEXT or (rule == DATE and size == 10):
        return put(put_header(to, size), text, size)
    if rule == INTEGER:
        return put_integer(to, text, size)
    if rule == TIMESTAMPTZ:
        return put_timestamptz(to, text, size)
    if rule == BOOLEAN:
        return put_boolean(to, text, size)
    if rule == TIMESTAMP:
        return put_timestamp(to, text, size)
    return NULL


cdef inline Py_ssize_t size_at(const byte *at) noexcept:
    """Read a size as the protocol writes it."""
    return (<Py_ssize_t>at[0] << 24) | (<Py_ssize_t>at[1] << 16) | (at[2] << 8) | at[3]


# --- Columns ------------------------------------------------------------------------------------

cdef struct Column:
    const byte *name
    Py_ssize_t name_size
    int rule


cdef class Columns:
    """What is known of a table's columns: a packed name, a rule, and a packer for other values."""

    cdef tuple names, packers
    cdef Column *all
    cdef Py_ssize_t count, names_size
    cdef bint has_others

    def __cinit__(self, columns):
        cdef Py_ssize_t n
        cdef bytes name
        self.names = tuple(name for name, _, _ in columns)
        self.packers = tuple(packer for _, _, packer in columns)
        self.count = len(self.names)
        self.all = <Column *>PyMem_Malloc((self.count + 1) * sizeof(Column))
        if self.all == NULL:
            raise MemoryError
        for n in range(self.count):
            name = self.names[n]
            self.all[n].name = <const byte *>PyBytes_AS_STRING(name)
            self.all[n].name_size = PyBytes_GET_SIZE(name)
            self.all[n].rule = columns[n][1]
            self.names_size += PyBytes_GET_SIZE(name)
            self.has_others = self.has_others or self.all[n].rule == OTHER

    def __dealloc__(self):
        PyMem_Free(self.all)

    cdef bytes pack_other(self, Py_ssize_t n, const byte *text, Py_ssize_t size, list as_text):
        """Pack a value that has no rule here; None where its text is not of its type.

        A value without native form is its text, and its column is added to `as_text`: documents
        with a number such as 2.50 are as common as any.
        """
        cdef byte header[HEADER]
        cdef bytes value
        cdef Py_ssize_t size_of_header
        try:
            value = self.packers[n](PyBytes_FromStringAndSize(<const char *>text, size))
        except PROBLEMS:
            return None
        if value is not None:
            return value
        as_text.append(n)
        size_of_header = put_header(header, size) - header
        value = PyBytes_FromStringAndSize(NULL, size_of_header + size)
        put(put(<byte *>PyBytes_AS_STRING(value), header, size_of_header), text, size)
        return value


# --- Frames of the WAL --------------------------------------------------------------------------

def cut_frames(bytes data not None):
    """Give what the CopyData messages at the beginning carry, and where the first other is."""
    cdef const byte *start = <const byte *>PyBytes_AS_STRING(data)
    cdef const byte *end = start + PyBytes_GET_SIZE(data)
    cdef const byte *at = start
    cdef Py_ssize_t size
    cdef list frames = []
    while end - at >= HEADER and at[0] == c"d":
        size = size_at(at + 1)
        if size < 4 or size > end - at - 1:
            break
        frames.append(PyBytes_FromStringAndSize(<const char *>at + HEADER, size - 4))
        at += 1 + size
    return frames, at - start


# --- Changes ------------------------------------------------------------------------------------

cdef struct Cell:
    byte kind              # t: text, n: NULL, u: unchanged
    const byte *text
    Py_ssize_t size


cdef inline const byte *next_cell(const byte *at, const byte *end, Cell *cell) noexcept:
    """Read the column that begins here; gives where the next one does, or NULL."""
    cell.text, cell.size = NULL, 0
    cell.kind = at[0] if at < end else 0
    if cell.kind == c"n" or cell.kind == c"u":
        return at + 1
    if cell.kind != c"t" or end - at < HEADER:
        return NULL
    cell.size = size_at(at + 1)
    cell.text = at + HEADER
    if cell.size < 0 or cell.size > end - cell.text:
        return NULL
    return cell.text + cell.size


cdef int put_decimal(byte *to, uint64_t number) noexcept:
    """Write a number's digits; gives how many they are."""
    cdef byte digits[MOST_DIGITS]
    cdef int n, count = 0
    while True:
        digits[count] = <byte>(c"0" + number % 10)
        count += 1
        number //= 10
        if not number:
            break
    for n in range(count):
        to[n] = digits[count - 1 - n]
    return count


cdef class RowCode:
    """One table's and operation's changes, from a frame's bytes to a message."""

    cdef bytes subject, id_suffix
    cdef bytes lsn_key, data_key, unchanged_key, text_key, not_last
    cdef tuple heads, names
    cdef Columns columns
    cdef Py_ssize_t fixed

    def __cinit__(self, *, bytes subject, tuple heads, bytes id_suffix, bytes lsn_key,
                  bytes data_key, bytes unchanged_key, bytes text_key, bytes not_last, columns):
        self.subject = subject
        self.heads = heads
        self.id_suffix = id_suffix
        self.lsn_key = lsn_key
        self.data_key = data_key
        self.unchanged_key = unchanged_key
        self.text_key = text_key
        self.not_last = not_last
        self.columns = Columns(columns)
        self.names = tuple(unpackb(name) for name, _, _ in columns)
        self.fixed = BESIDES + self.columns.names_size + sum(
            map(len, (*heads, lsn_key, data_key, unchanged_key, text_key, not_last))
        )

    def __call__(self, bytes frame not None, bytes lsn not None, Py_ssize_t ordinal,
                 Py_ssize_t repeat, bytes transaction not None):
        """Give subject, message id and body; None says: the long way."""
        if PyBytes_GET_SIZE(lsn) != 8 or ordinal < 0 or repeat < 0:
            return None
        return self.encode(frame, <const byte *>PyBytes_AS_STRING(lsn), ordinal, repeat,
                           transaction)

    cdef tuple encode(self, bytes frame, const byte *lsn, Py_ssize_t ordinal, Py_ssize_t repeat,
                      bytes transaction):
        cdef Py_ssize_t unchanged, bound
        cdef list others = None, as_text = None
        cdef bytes msg_id
        cdef byte small[SMALL]
        cdef byte *out
        unchanged = self.survey(frame)
        if unchanged < 0:
            return None
        msg_id = self.message_id(lsn, repeat)
        bound = (self.fixed + PyBytes_GET_SIZE(msg_id) + PyBytes_GET_SIZE(transaction)
                 + PyBytes_GET_SIZE(frame))
        if self.columns.has_others:
            as_text = []
            others = self.pack_others(frame, as_text)
            if others is None:
                return None
            bound += sum(map(len, others))
            if as_text:
                # Their names are written once more.
                bound += self.columns.names_size
                as_text.sort(key=self.names.__getitem__)
        if bound <= SMALL:
            body = self.write(small, frame, lsn, ordinal, msg_id, transaction, unchanged, others,
                              as_text)
        else:
            out = <byte *>PyMem_Malloc(bound)
            if out == NULL:
                raise MemoryError
            try:
                body = self.write(out, frame, lsn, ordinal, msg_id, transaction, unchanged, others,
                                  as_text)
            finally:
                PyMem_Free(out)
        return None if body is None else (self.subject, msg_id, body)

    cdef Py_ssize_t survey(self, bytes frame) noexcept:
        """Say how many columns did not change; -1 where these bytes are no row of this table."""
        cdef const byte *end = <const byte *>PyBytes_AS_STRING(frame) + PyBytes_GET_SIZE(frame)
        cdef const byte *at = <const byte *>PyBytes_AS_STRING(frame) + ROW_AT
        cdef Py_ssize_t n, unchanged = 0
        cdef Cell cell
        if PyBytes_GET_SIZE(frame) < ROW_AT:
            return -1
        for n in range(self.columns.count):
            at = next_cell(at, end, &cell)
            if at == NULL:
                return -1
            unchanged += cell.kind == c"u"
        return unchanged if at == end else -1

    cdef bytes message_id(self, const byte *lsn, Py_ssize_t repeat):
        """The LSN in hexadecimal, the table's and operation's part, and which of its record."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.id_suffix)
        cdef bytes msg_id
        cdef byte small[16 + 1 + MOST_DIGITS]
        cdef int n, digit, count = 0, more = 0
        for n in range(16):
            digit = lsn[n >> 1] >> 4 if n % 2 == 0 else lsn[n >> 1] & 15
            if digit or count or n == 15:
                small[count] = <byte>(c"0" + digit if digit < 10 else c"a" + digit - 10)
                count += 1
        if repeat:
            small[count] = c"-"
            more = 1 + put_decimal(small + count + 1, <uint64_t>repeat)
        msg_id = PyBytes_FromStringAndSize(NULL, count + size + more)
        put(put_bytes(put(<byte *>PyBytes_AS_STRING(msg_id), small, count), self.id_suffix),
            small + count, more)
        return msg_id

    cdef list pack_others(self, bytes frame, list as_text):
        """Pack the values that take Python to understand, in the order of their columns."""
        cdef const byte *end = <const byte *>PyBytes_AS_STRING(frame) + PyBytes_GET_SIZE(frame)
        cdef const byte *at = <const byte *>PyBytes_AS_STRING(frame) + ROW_AT
        cdef Py_ssize_t n
        cdef Cell cell
        cdef list packed = []
        cdef bytes value
        for n in range(self.columns.count):
            at = next_cell(at, end, &cell)
            if cell.kind == c"t" and self.columns.all[n].rule == OTHER:
                value = self.columns.pack_other(n, cell.text, cell.size, as_text)
                if value is None:
                    return None
                packed.append(value)
        return packed

    cdef bytes write(self, byte *out, bytes frame, const byte *lsn, Py_ssize_t ordinal,
                     bytes msg_id, bytes transaction, Py_ssize_t unchanged, list others,
                     list as_text):
        """Write the body of a row that was surveyed, to where there is room for it."""
        cdef const byte *end = <const byte *>PyBytes_AS_STRING(frame) + PyBytes_GET_SIZE(frame)
        cdef const byte *at = <const byte *>PyBytes_AS_STRING(frame) + ROW_AT
        cdef Column *column
        cdef Py_ssize_t n, other = 0
        cdef Cell cell
        cdef byte *to = put_bytes(out, self.heads[(unchanged > 0) + bool(as_text)])
        to = put_bytes(put_header(to, PyBytes_GET_SIZE(msg_id)), msg_id)
        to = put(put_bytes(to, self.lsn_key), lsn, 8)
        to = put_unsigned(put_bytes(to, transaction), <uint64_t>ordinal)
        to = put_count(put_bytes(to, self.data_key), 0x80, 0xDE, self.columns.count - unchanged)
        for n in range(self.columns.count):
            at = next_cell(at, end, &cell)
            if cell.kind == c"u":
                continue
            column = &self.columns.all[n]
            to = put(to, column.name, column.name_size)
            if cell.kind == c"n":
                to[0] = 0xC0
                to += 1
            elif column.rule == OTHER:
                to = put_bytes(to, others[other])
                other += 1
            else:
                to = put_value(to, column.rule, cell.text, cell.size)
                if to == NULL:
                    return None
        if unchanged:
            to = put_count(put_bytes(to, self.unchanged_key), 0x90, 0xDC, unchanged)
            to = self.put_unchanged(to, frame)
        if as_text:
            to = put_count(put_bytes(to, self.text_key), 0x90, 0xDC, len(as_text))
            for n in as_text:
                to = put(to, self.columns.all[n].name, self.columns.all[n].name_size)
        to = put_bytes(to, self.not_last)
        return PyBytes_FromStringAndSize(<const char *>out, to - out)

    cdef byte *put_unchanged(self, byte *to, bytes frame) noexcept:
        """Name the columns that are not in `data`."""
        cdef const byte *end = <const byte *>PyBytes_AS_STRING(frame) + PyBytes_GET_SIZE(frame)
        cdef const byte *at = <const byte *>PyBytes_AS_STRING(frame) + ROW_AT
        cdef Py_ssize_t n
        cdef Cell cell
        for n in range(self.columns.count):
            at = next_cell(at, end, &cell)
            if cell.kind == c"u":
                to = put(to, self.columns.all[n].name, self.columns.all[n].name_size)
        return to


def encode_run(list frames not None, Py_ssize_t at, dict codes not None, list rows not None,
               bytes transaction not None, run):
    """Queue the plain changes that follow one another, as `runs` does."""
    cdef Py_ssize_t ordinal = run.ordinal, repeat, first = -1
    cdef dict repeats = run.repeats
    cdef bytes record = run.record, found = b"", frame, key
    cdef const byte *lsn
    cdef RowCode code = None
    cdef tuple row
    while at < len(frames):
        frame = frames[at]
        if PyBytes_GET_SIZE(frame) < ROW_AT:
            break
        lsn = <const byte *>PyBytes_AS_STRING(frame) + 1
        if code is None or memcmp(PyBytes_AS_STRING(found), lsn + KEY_AT - 1, 8):
            found = PyBytes_FromStringAndSize(<const char *>lsn + KEY_AT - 1, 8)
            code = codes.get(found)
            if code is None:
                break
        key, repeat = None, 0
        if PyBytes_GET_SIZE(record) == 8 and not memcmp(PyBytes_AS_STRING(record), lsn, 8):
            if first >= 0:
                count_first(repeats, frames[first])
                first = -1
            key = frame[KEY_AT:KEY_AT + 5]
            repeat = repeats.get(key, 0)
        row = code.encode(frame, lsn, ordinal, repeat, transaction)
        if row is None:
            break
        if key is None:
            record, first = PyBytes_FromStringAndSize(<const char *>lsn, 8), at
        else:
            repeats[key] = repeat + 1
        rows.append(row)
        ordinal += 1
        at += 1
    if first >= 0:
        count_first(repeats, frames[first])
    run.ordinal, run.record = ordinal, record
    return at


cdef int count_first(dict repeats, bytes frame) except -1:
    """Count the first change of a record."""
    repeats.clear()
    repeats[frame[KEY_AT:KEY_AT + 5]] = 1
    return 0


# --- Snapshots ----------------------------------------------------------------------------------

cdef Py_ssize_t unescape(byte *to, const byte *text, Py_ssize_t size) noexcept:
    """Write a field's own bytes; gives how many they are, or -1 for an escape COPY does not have."""
    cdef const byte *letters = b"bfnrtv\\"
    cdef const byte *meanings = b"\b\f\n\r\t\v\\"
    cdef const byte *found
    cdef Py_ssize_t n = 0, count = 0
    while n < size:
        to[count] = text[n]
        if text[n] == c"\\":
            n += 1
            if n == size:
                return -1
            found = <const byte *>memchr(letters, text[n], 7)
            if found == NULL:
                return -1
            to[count] = meanings[found - letters]
        n += 1
        count += 1
    return count


cdef class LinePacker:
    """One table's lines of COPY to rows; the first column's name brings the map's header along."""

    cdef Columns columns

    def __cinit__(self, columns):
        self.columns = Columns(columns)

    def pack(self, bytes text not None, Py_ssize_t count):
        """Pack so many lines, a mark behind each (`copylines`); None where any is not plain.

        Beside the rows, give which columns of which are text, by their numbers.
        """
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text), bound
        cdef const byte *at = <const byte *>PyBytes_AS_STRING(text)
        cdef list others = []
        cdef dict texts = {}
        cdef byte *out
        cdef byte *spare = <byte *>PyMem_Malloc(size + 1)
        if spare == NULL:
            raise MemoryError
        try:
            # Every line is longer than nothing, so a count that lies asks for no memory.
            if count < 1 or count > size or not self.survey(at, size, count, spare, others,
                                                                  texts):
                return None
            bound = (size + count * (self.columns.names_size + self.columns.count * HEADER)
                     + sum(map(len, others)) + BESIDES)
            out = <byte *>PyMem_Malloc(bound)
            if out == NULL:
                raise MemoryError
            try:
                body = self.write(out, at, size, count, spare, others)
                return None if body is None else (body, texts)
            finally:
                PyMem_Free(out)
        finally:
            PyMem_Free(spare)

    cdef bint survey(self, const byte *at, Py_ssize_t size, Py_ssize_t count, byte *spare,
                     list others, dict texts) except -1:
        """Say whether there are as many lines and fields as belong there; pack other values."""
        cdef const byte *end = at + size
        cdef const byte *tab
        cdef Py_ssize_t row, n, length
        cdef bytes value
        cdef list as_text = []
        for row in range(count):
            for n in range(self.columns.count):
                tab = <const byte *>memchr(at, c"\t", end - at)
                if tab == NULL:
                    return False
                if self.columns.all[n].rule == OTHER and not is_null(at, tab - at):
                    length = unescape(spare, at, tab - at)
                    if length < 0:
                        return False
                    value = self.columns.pack_other(n, spare, length, as_text)
                    if value is None:
                        return False
                    others.append(value)
                at = tab + 1
            if end - at < 2 or at[0] != c"\n" or at[1] != c"\t":
                return False
            at += 2
            if as_text:
                texts[row] = as_text
                as_text = []
        return at == end

    cdef bytes write(self, byte *out, const byte *at, Py_ssize_t size, Py_ssize_t count,
                     byte *spare, list others):
        """Write lines that were surveyed, to where there is room for them."""
        cdef const byte *end = at + size
        cdef const byte *tab
        cdef const byte *text
        cdef Column *column
        cdef byte *to = out
        cdef Py_ssize_t row, n, length, other = 0
        cdef bint has_escapes = memchr(at, c"\\", size) != NULL
        for row in range(count):
            for n in range(self.columns.count):
                column = &self.columns.all[n]
                tab = <const byte *>memchr(at, c"\t", end - at)
                text, length = at, tab - at
                at = tab + 1
                to = put(to, column.name, column.name_size)
                if has_escapes and is_null(text, length):
                    to[0] = 0xC0
                    to += 1
                    continue
                if column.rule == OTHER:
                    to = put_bytes(to, others[other])
                    other += 1
                    continue
                if has_escapes and memchr(text, c"\\", length) != NULL:
                    length = unescape(spare, text, length)
                    text = spare
                    if length < 0:
                        return None
                to = put_value(to, column.rule, text, length)
                if to == NULL:
                    return None
            at += 2
        return PyBytes_FromStringAndSize(<const char *>out, to - out)


cdef inline bint is_null(const byte *text, Py_ssize_t size) noexcept:
    return size == 2 and text[0] == c"\\" and text[1] == c"N"


# --- Frames of NATS -----------------------------------------------------------------------------

cdef inline byte *put_sizes(byte *to, Py_ssize_t headers, Py_ssize_t total) noexcept:
    """Write how many bytes the headers are, and how many they and the body are."""
    to[0] = c" "
    to += 1 + put_decimal(to + 1, <uint64_t>headers)
    to[0] = c" "
    return to + 1 + put_decimal(to + 1, <uint64_t>total)


cdef Py_ssize_t room_for(rows, shared) except -1:
    """Say how many bytes the frames of some messages need at most; ids may stand there twice."""
    cdef bytes subject, msg_id, body
    cdef Py_ssize_t bound = len(rows) * (sum(map(len, shared)) + 4 * MOST_DIGITS + BESIDES)
    for subject, msg_id, body in rows:
        if subject is None or msg_id is None or body is None:
            raise TypeError("a message is three times bytes")
        bound += PyBytes_GET_SIZE(subject) + 2 * PyBytes_GET_SIZE(msg_id) + PyBytes_GET_SIZE(body)
    return bound


def publish_batch(rows, Py_ssize_t first, uint64_t behind, shared):
    """Write many messages, numbered from the first on, as `jetstream.frames` does."""
    cdef bytes before, after, headers, expected, content, subject, msg_id, body
    cdef Py_ssize_t size, headers_size, digits = 0
    cdef byte follows[MOST_DIGITS]
    cdef byte *out
    cdef byte *to
    before, after, headers, expected, content = shared
    # What the server counts as headers begins behind the first line's end.
    headers_size = len(headers) - 2 + len(expected) + len(content)
    out = to = <byte *>PyMem_Malloc(room_for(rows, shared) + 1)
    if out == NULL:
        raise MemoryError
    try:
        for subject, msg_id, body in rows:
            if PyBytes_GET_SIZE(expected):
                digits = put_decimal(follows, behind)
            size = headers_size + PyBytes_GET_SIZE(msg_id) + digits
            to = put_bytes(put_bytes(put(to, b"HPUB ", 5), subject), before)
            to += put_decimal(to, <uint64_t>first)
            to = put_sizes(put_bytes(to, after), size, size + PyBytes_GET_SIZE(body))
            to = put_bytes(put_bytes(put_bytes(to, headers), msg_id), expected)
            to = put_bytes(put_bytes(put(to, follows, digits), content), body)
            to = put(to, b"\r\n", 2)
            first += 1
            behind += 1
        return PyBytes_FromStringAndSize(<const char *>out, to - out)
    finally:
        PyMem_Free(out)


def publish_chain(rows, bytes behind not None, shared):
    """Write many messages, each behind the one before it, as `jetstream.frames` does."""
    cdef bytes headers, expected, content, subject, msg_id, body
    cdef Py_ssize_t size, headers_size
    cdef byte *out
    cdef byte *to
    headers, expected, content = shared
    headers_size = len(headers) - 2 + len(expected) + len(content)
    out = to = <byte *>PyMem_Malloc(room_for(rows, shared) + PyBytes_GET_SIZE(behind) + 1)
    if out == NULL:
        raise MemoryError
    try:
        for subject, msg_id, body in rows:
            size = headers_size + PyBytes_GET_SIZE(msg_id) + PyBytes_GET_SIZE(behind)
            to = put_bytes(put(to, b"HPUB ", 5), subject)
            to = put_sizes(to, size, size + PyBytes_GET_SIZE(body))
            to = put_bytes(put_bytes(put_bytes(to, headers), msg_id), expected)
            to = put_bytes(put_bytes(put_bytes(to, behind), content), body)
            to = put(to, b"\r\n", 2)
            behind = msg_id
        return PyBytes_FromStringAndSize(<const char *>out, to - out)
    finally:
        PyMem_Free(out)
