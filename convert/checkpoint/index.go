package checkpoint

// The index of a sharded checkpoint: which file holds which tensor.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/text"
)

// The limits on an index, far above those of any model.
const (
	maxIndexSize  = 64 << 20
	maxIndexDepth = 64
	maxShards     = 10_000
)

// index is the content of a model.safetensors.index.json.
type index struct {
	File      string   `json:"file"`                 // its own name
	TotalSize string   `json:"total_size,omitempty"` // metadata.total_size as it was written; empty if absent
	Tensors   int      `json:"tensors"`              // names in weight_map
	Shards    []string `json:"shards"`               // files in weight_map, sorted

	weights []weight // in the order of the file; nil once the files were compared with it
}

// weight is one entry of an index's weight_map.
type weight struct{ tensor, file string }

// readIndex reads the index in dir.
func readIndex(dir source.Dir, file string, of *format.Format) (*index, error) {
	f, err := dir.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if size := stat.Size(); size > maxIndexSize {
		return nil, fmt.Errorf("%s, more than the limit of %s", text.ExactBytes(size), text.Bytes(maxIndexSize))
	}
	r := bufio.NewReader(io.LimitReader(f, maxIndexSize))
	if head, _ := r.Peek(1 << 10); format.Substitute(dir.Path(file), head) != nil {
		return nil, format.Substitute(dir.Path(file), head)
	}
	return parseIndex(r, file, of)
}

// parseIndex reads an index strictly: exact keys, no key twice in any object, nothing after the object. It ignores keys
// that it does not know.
func parseIndex(r io.Reader, file string, of *format.Format) (*index, error) {
	p := indexParser{format: of, dec: jsontext.NewDecoder(bufio.NewReader(r)), index: &index{File: file}}
	err := format.Parse(p.parse)
	var syntactic *jsontext.SyntacticError
	switch {
	case err == nil:
		return p.index, nil
	case err == io.EOF:
		return nil, errors.New("file is empty")
	case !errors.As(err, &syntactic):
		return nil, err
	case errors.Is(err, jsontext.ErrDuplicateName):
		return nil, fmt.Errorf("key %s occurs twice", text.Quote(syntactic.JSONPointer.LastToken()))
	}
	cause := text.SyntaxCause(syntactic)
	if !text.Printable(cause) || len(cause) > 200 {
		cause = text.Quote(cause)
	}
	return nil, fmt.Errorf("byte %d: not valid JSON: %s", syntactic.ByteOffset, cause)
}

type indexParser struct {
	format *format.Format // of the files that it lists
	dec    *jsontext.Decoder
	index  *index
}

func (p *indexParser) fail(cause string, args ...any) { format.Fail(fmt.Errorf(cause, args...)) }

func (p *indexParser) parse() {
	hasWeights := false
	p.object("index", func(key string) {
		switch {
		case key == "weight_map":
			hasWeights = true
			p.object(key, p.weight)
		case key == "metadata" && p.dec.PeekKind() != 'n':
			p.object(key, func(key string) {
				if key == "total_size" && p.dec.PeekKind() == '0' {
					p.index.TotalSize = p.next().String()
				} else {
					p.skip()
				}
			})
		default:
			p.skip()
		}
	})
	if !hasWeights {
		p.fail("weight_map is missing")
	}
	for _, w := range p.index.weights {
		p.index.Shards = append(p.index.Shards, w.file)
	}
	slices.Sort(p.index.Shards)
	p.index.Shards = slices.Compact(p.index.Shards)
	p.index.Tensors = len(p.index.weights)
	if n := len(p.index.Shards); n > maxShards {
		p.fail("weight_map names %d files, more than the limit of %d", n, maxShards)
	}
	if _, err := p.dec.ReadToken(); err != io.EOF {
		p.fail("text after the end of the JSON object")
	}
	if p.index.Tensors == 0 {
		p.fail("weight_map is empty")
	}
}

// weight reads the file of a weight. It refuses a name that could lead out of the directory, or to a file of another
// format than the index's.
func (p *indexParser) weight(name string) {
	if err := format.CheckName(name); err != nil {
		p.fail("weight_map: %s: %w", text.Quote(name), err)
	}
	if len(p.index.weights) == format.MaxTensors {
		p.fail("weight_map: more than %d tensors", format.MaxTensors)
	}
	tok := p.next()
	if tok.Kind() != '"' {
		p.fail("weight_map: %s: file name is not a string", text.Quote(name))
	}
	file := tok.String()
	if local := path.Clean(strings.ReplaceAll(file, `\`, "/")); !strings.Contains(local, "/") { // "./x", as some tools write it
		file = local
	}
	switch {
	case !p.format.Recognise(file) || filepath.Ext(file) == file:
		p.fail("weight_map: %s: %s is not the name of a %s file", text.Quote(name), text.Quote(file), p.format.Name)
	case strings.ContainsAny(file, `/\`) && filepath.IsLocal(strings.ReplaceAll(file, `\`, "/")):
		p.fail("weight_map: %s: %s is in a directory of its own; move it beside the index, and leave out the directory there",
			text.Quote(name), text.Quote(file))
	case strings.ContainsAny(file, `/\`) || !filepath.IsLocal(file):
		p.fail("weight_map: %s: %s leads out of the checkpoint's directory", text.Quote(name), text.Quote(file))
	case len(file) > 255 || format.CheckName(file) != nil:
		p.fail("weight_map: %s: %s is not a usable file name", text.Quote(name), text.Quote(file))
	}
	if n := len(p.index.weights); n > 0 && p.index.weights[n-1].file == file {
		file = p.index.weights[n-1].file // share the string
	}
	p.index.weights = append(p.index.weights, weight{name, file})
}

// next reads one token.
func (p *indexParser) next() jsontext.Token {
	tok, err := p.dec.ReadToken()
	if err != nil {
		format.Fail(err)
	}
	return tok
}

// object calls member for each key of the next object; member reads the value.
func (p *indexParser) object(what string, member func(key string)) {
	if p.next().Kind() != '{' {
		p.fail("%s is not an object", what)
	}
	for tok := p.next(); tok.Kind() != '}'; tok = p.next() {
		member(tok.String())
	}
}

// skip reads over one value that is not too deep.
func (p *indexParser) skip() {
	depth := p.dec.StackDepth()
	for p.next(); p.dec.StackDepth() > depth; p.next() {
		if p.dec.StackDepth() > maxIndexDepth {
			p.fail("nested more than %d levels", maxIndexDepth)
		}
	}
}
