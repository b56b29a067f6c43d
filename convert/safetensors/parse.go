package safetensors

// The header's grammar: a parser of exactly the JSON that a header may hold. It
// reads token by token and keeps only tensors and metadata, so its memory is
// bounded by the limits and not by the header's size.

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

type parser struct {
	file     string
	src      *source
	dec      *jsontext.Decoder
	tensor   string // the tensor being read, for errors
	entries  []entry
	metadata map[string]string
}

// source feeds the decoder and refuses to go on when a token, or the white space
// before it, does not end: the decoder holds both in memory.
type source struct {
	r      *bufio.Reader
	base   int64 // offset in the file of the first byte that the decoder gets
	handed int64 // bytes handed to the decoder
	used   int64 // bytes of the tokens that it returned
}

var errLongToken = errors.New("a string or white space of more than 16 MiB")

// Read fills b, unless a token has become too long.
func (s *source) Read(b []byte) (int, error) {
	if s.handed-s.used > maxToken {
		return 0, errLongToken
	}
	n, err := s.r.Read(b)
	s.handed += int64(n)
	return n, err
}

// skipSpace drops leading white space, of any length.
func (s *source) skipSpace() error {
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return err
		}
		if !isSpace(c) {
			return s.r.UnreadByte()
		}
		s.base++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// header reads the whole header.
func (p *parser) header() {
	if err := p.src.skipSpace(); err != nil {
		p.syntax(err)
	}
	p.dec = jsontext.NewDecoder(p.src, jsontext.AllowDuplicateNames(true)) // index and the key checks find them
	hasMetadata := false
	for name := range p.members("header") {
		switch {
		case name != metadataName:
			p.parseTensor(name)
		case hasMetadata:
			p.fail("__metadata__ occurs twice")
		default:
			hasMetadata = true
			p.parseMetadata()
		}
	}
	p.trailing()
}

// fieldNames are the keys of a tensor's entry.
var fieldNames = [...]string{"dtype", "shape", "data_offsets"}

// parseTensor reads {"dtype":…,"shape":…,"data_offsets":…}, in any order.
func (p *parser) parseTensor(name string) {
	p.tensor = name
	if err := checkName(name); err != nil {
		p.fail("%v", err)
	}
	if len(p.entries) == format.MaxTensors {
		p.fail("more than %d tensors in one file", format.MaxTensors)
	}
	e := entry{info: tensor.Info{Name: name}}
	var seen [len(fieldNames)]bool
	for key := range p.members("entry") {
		i := slices.Index(fieldNames[:], key)
		if i < 0 {
			p.fail("unknown key %s", text.Quote(key))
		}
		if seen[i] {
			p.fail("key %s occurs twice", key)
		}
		seen[i] = true
		switch key {
		case "dtype":
			e.info.DType = p.dtype()
		case "shape":
			e.info.Shape = p.shape()
		case "data_offsets":
			e.begin, e.end = p.offsets()
		}
	}
	if i := slices.Index(seen[:], false); i >= 0 {
		p.fail("%s is missing", fieldNames[i])
	}
	size, err := tensor.Size(e.info.DType, e.info.Shape)
	if err != nil {
		p.fail("%s of shape %v: %v", e.info.DType, e.info.Shape, err)
	}
	if e.end-e.begin != size {
		p.fail("data_offsets [%d, %d] hold %d bytes, but %s of shape %v needs %d",
			e.begin, e.end, e.end-e.begin, e.info.DType, e.info.Shape, size)
	}
	p.entries = append(p.entries, e)
	p.tensor = ""
}

func (p *parser) dtype() tensor.DType {
	s := p.text("dtype")
	d, err := tensor.ParseDType(s)
	if err != nil {
		p.fail("%v", err)
	}
	if d.Blocked() {
		p.fail("unknown dtype %q: safetensors does not have it", s)
	}
	return d
}

func (p *parser) shape() []int {
	var dims [maxRank]int
	n := 0
	for dim := range p.numbers("shape", "dimension", min(maxDim, math.MaxInt)) {
		if n == maxRank {
			p.fail("shape has more than %d dimensions", maxRank)
		}
		dims[n] = int(dim)
		n++
	}
	return slices.Clone(dims[:n:n])
}

func (p *parser) offsets() (begin, end int64) {
	var pair [2]int64
	n := 0
	for v := range p.numbers("data_offsets", "data offset", 1<<62) {
		if n == len(pair) {
			p.fail("data_offsets must be two numbers")
		}
		pair[n] = v
		n++
	}
	switch {
	case n < len(pair):
		p.fail("data_offsets must be two numbers")
	case pair[0] > pair[1]:
		p.fail("data_offsets [%d, %d] end before they begin", pair[0], pair[1])
	}
	return pair[0], pair[1]
}

// parseMetadata reads an object of strings, or null.
func (p *parser) parseMetadata() {
	if p.dec.PeekKind() == 'n' {
		p.next()
		return
	}
	p.metadata = map[string]string{}
	size := 0
	for key := range p.members(metadataName) {
		if _, ok := p.metadata[key]; ok {
			p.fail("__metadata__: key %s occurs twice", text.Quote(key))
		}
		value := p.text("__metadata__: value of " + text.Quote(key))
		if size += len(key) + len(value) + 64; size > maxMetadata {
			p.fail("__metadata__ exceeds %s", text.Bytes(maxMetadata))
		}
		p.metadata[key] = value
	}
}

// trailing accepts nothing but white space after the header's object.
func (p *parser) trailing() {
	rest := io.MultiReader(bytes.NewReader(p.dec.UnreadBuffer()), p.src.r)
	buf := make([]byte, 4096)
	for at := p.src.base + p.dec.InputOffset(); ; {
		n, err := rest.Read(buf)
		for i, c := range buf[:n] {
			if !isSpace(c) {
				cause := fmt.Sprintf("byte 0x%02x after the end of the header's JSON object", c)
				format.Fail(problem.New(p.file, problem.Byte(at+int64(i), cause), ""))
			}
		}
		at += int64(n)
		if err == io.EOF {
			return
		}
		if err != nil {
			p.syntax(err)
		}
	}
}

// next reads one token.
func (p *parser) next() jsontext.Token {
	tok, err := p.dec.ReadToken()
	if err != nil {
		p.syntax(err)
	}
	p.src.used = p.dec.InputOffset()
	return tok
}

// open reads the token that begins an object or an array.
func (p *parser) open(kind jsontext.Kind, what string) {
	if tok := p.next(); tok.Kind() != kind {
		p.fail("%s is %s, not %s", what, kindName(tok.Kind()), kindName(kind))
	}
}

// members yields the keys of an object, each of whose values is read before the next.
func (p *parser) members(what string) iter.Seq[string] {
	return func(yield func(string) bool) {
		p.open('{', what)
		for tok := p.next(); tok.Kind() != '}'; tok = p.next() {
			if !yield(tok.String()) {
				return
			}
		}
	}
}

// text reads a string.
func (p *parser) text(what string) string {
	tok := p.next()
	if tok.Kind() != '"' {
		p.fail("%s is %s, not a string", what, kindName(tok.Kind()))
	}
	return tok.String()
}

// numbers yields the numbers of an array. Only plain digits are a number here: no sign, fraction or exponent.
func (p *parser) numbers(array, what string, limit int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		p.open('[', array)
		for tok := p.next(); tok.Kind() != ']'; tok = p.next() {
			if tok.Kind() != '0' {
				p.fail("%s is %s, not a number", what, kindName(tok.Kind()))
			}
			raw := tok.String()
			u, err := strconv.ParseUint(raw, 10, 64)
			if err != nil && !errors.Is(err, strconv.ErrRange) {
				p.fail("%s %s is not a plain non-negative integer", what, text.Quote(raw))
			}
			if err != nil || u > uint64(limit) {
				p.fail("%s %s exceeds the limit of %d", what, text.Quote(raw), limit)
			}
			if !yield(int64(u)) {
				return
			}
		}
	}
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	}
	return "an array"
}

// fail ends the reading with an error at the last token.
func (p *parser) fail(cause string, args ...any) {
	p.failAt(p.src.base+p.dec.InputOffset(), fmt.Sprintf(cause, args...))
}

// failAt ends the reading with an error at a byte of the file.
func (p *parser) failAt(at int64, cause string) {
	format.Fail(problem.In(p.file, problem.Problem{Tensor: p.tensor, Cause: problem.Byte(at, cause)}))
}

// syntax ends the reading with an error of the decoder or the reader.
func (p *parser) syntax(err error) {
	at := p.src.used
	var cause string
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntactic) && !errors.Is(err, io.ErrUnexpectedEOF):
		at, cause = syntactic.ByteOffset, "header is not valid JSON: "+text.Clip(syntactic.Err.Error(), 200)
	case errors.Is(err, errLongToken):
		cause = "header has " + errLongToken.Error()
	case errors.Is(err, io.EOF):
		cause = "header holds no JSON object"
	case errors.Is(err, io.ErrUnexpectedEOF):
		cause = "header is not valid JSON: it ends too early"
	default:
		format.Fail(problem.System(p.file, "header", err))
	}
	p.failAt(p.src.base+at, cause)
}
