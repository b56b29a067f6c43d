// Package format defines a file format of weights: a Format is a value with the names of its
// files and the functions that open and lay out a file. Each format has its own package,
// which makes such a value; package checkpoint lists them.
package format

import (
	"io"
	"io/fs"
	"iter"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// Format is a file format of weights.
type Format struct {
	Name string // in messages: "safetensors"

	// Recognise reports whether a file with this name holds weights in this format.
	Recognise func(file string) bool
	// Single is the file name of a checkpoint in one file. Shards have its stem.
	Single string
	// ShardBytes is the default limit of tensor bytes per file; 0 puts all in one file.
	ShardBytes int64
	// Index is the file name of the index of a checkpoint in shards.
	Index string
	// Config is the file name of the config beside the weights; empty with a Dialect.
	Config string
	// IsIndex accepts the name of an index of this format, its variants too.
	IsIndex func(file string) bool
	// Belongs reports whether a file in a checkpoint's directory may be part of the
	// checkpoint.
	Belongs func(file string) bool

	// Open reads d and checks everything but the weights themselves. The File has d's methods,
	// and closes it; without a File, Open has closed it. Errors are of type *problem.Error.
	Open func(d Data) (File, error)
	// Layout lays out the tensors of a new file, in the order that the format's own
	// library writes them in. It is nil for a format that is only read.
	Layout func(tensors []tensor.Info, head Head) (*Layout, error)

	// Dialect is how the format names and arranges tensors, if not as HuggingFace does.
	Dialect *Dialect
}

// Head is a file's content beside its tensors. The zero value is the format's default.
type Head struct {
	Keys    []byte // as Dialect.Describe encodes them
	Shard   int    // the number of the file, counted from 0
	Shards  int    // number of files; 0 is one
	Tensors int    // in all files
}

// Dialect describes a format that holds config.json inside its files, and tensors under its
// own names and in its own orders.
type Dialect struct {
	// Assemble returns the content of a checkpoint's open files in HuggingFace's terms, or what is
	// wrong with them.
	Assemble func(files []File) (*Assembly, []problem.Problem)
	// Arrange returns the tensors that hold weights of c, in the order of weights, which go by
	// their names in the table, and a problem for each weight or property of the model that the
	// format cannot hold. kind is the type asked for: Description.Type.
	Arrange func(c *config.Config, weights []tensor.Info, kind string) ([]Arranged, []problem.Problem)
	// Types are Arrange's words for mixtures of dtypes.
	Types []string
	// Describe encodes the files' content beside their tensors; from d.Source, if present.
	Describe func(d Description) (Described, error)
	// Tokenizer returns the files of the tokenizer that a checkpoint's open files hold. The note says
	// what was made, or why nothing was.
	Tokenizer func(files []File) (texts []Text, note string, err error)
	// Predicts reports whether files with weights of c hold its prediction layers unless the user drops them.
	Predicts func(c *config.Config) bool
	// Consumes reports whether a file without weights with this name goes into the keys.
	Consumes func(file string) bool
}

// Arranged is a tensor to be written: weights of the table one behind the other, or elements
// of one in another order.
type Arranged struct {
	Name    string       // as it is written
	Shape   []int        // as it is written
	DType   tensor.DType // Invalid: any that is asked for
	Weights []string     // of the table
	First   int64        // the first element of the one weight that View counts from
	View    *tensor.View // which of its elements, in which order; nil for all as they lie
}

// Description is the argument of Describe.
type Description struct {
	Config  *config.Config
	Name    string                             // of the model, unless Named or the source's keys have one
	Named   string                             // that the user gave the model and the files; may be empty
	Type    string                             // that was asked for: "keep", or a dtype or a mixture
	Tensors []tensor.Info                      // as they are written
	Was     []tensor.DType                     // dtypes of widened tensors before widening; Invalid for others
	Open    func(name string) (fs.File, error) // opens a file beside the source's weights; nil for none
	List    func(dir string) ([]string, error) // names in a directory beside them, sorted; nil like Open
	Pre     string                             // the name of a pre-tokenizer that is unknown
	NoVocab bool                               // without a vocabulary
	Source  []File                             // the source's files if they have this format; nil for others
	Before  *config.Config                     // the source's
	Imatrix *Imatrix                           // with which tensors are quantised; nil for none
}

// Described is the result of Describe.
type Described struct {
	Keys       []byte      // the encoded content
	Stem       string      // of the files' names
	Notes      []string    // warnings for readers of the files
	Vocabulary *Vocabulary // what Keys say of texts; nil if they hold no tokens
}

// Vocabulary is what the keys of a written file tell a program that reads and writes texts.
type Vocabulary struct {
	From     string      `json:"from"`          // the file that it was made of
	Tokens   int         `json:"tokens"`        // number of tokens
	Pre      string      `json:"pre"`           // llama.cpp's name of the pre-tokenizer; empty if the keys name none
	Begin    *Token      `json:"bos"`           // begins a text; null if the keys name none
	Ends     []Token     `json:"eos"`           // end a text: the keys' first, then others that eos_token_id lists
	Template bool        `json:"chat_template"` // the keys have one
	Sampling []Parameter `json:"sampling"`      // recommended by generation_config.json
}

// Token is an entry of a vocabulary.
type Token struct {
	ID   int    `json:"id"`
	Text string `json:"text"`
}

// Parameter is a parameter of sampling.
type Parameter struct {
	Name  string `json:"name"`  // that Ollama has for it
	Value string `json:"value"` // as a Modelfile spells it
}

// Text is a file without weights.
type Text struct {
	Name string
	Data []byte
}

// Assembly is the content of a checkpoint's files in HuggingFace's terms.
type Assembly struct {
	Config  []byte      // config.json
	Tensors []Assembled // file by file
	Notes   []string    // parts of the files that are not read
}

// Assembled is a tensor in HuggingFace's terms, and where its elements are.
type Assembled struct {
	tensor.Info
	Parts []Part // consecutive parts of the tensor, at least one
	// Was is the dtype that the elements had before they were widened to this one, which
	// lost nothing; Invalid if that is not known.
	Was tensor.DType
}

// Part is a run of a tensor's elements, or a view of one, where a file has them.
type Part struct {
	File   int          // index of the file in the checkpoint
	Tensor string       // as it is stored
	First  int64        // index of the first element in the stored tensor
	N      int64        // number of elements used from First on
	View   *tensor.View // in which order; nil for that in which they lie
	// Decode is the dtype that the elements are stored in, if they are decoded to F32, the
	// dtype of the tensor, because it is of several, or its blocks are cut apart, or I32 of an I64 tensor; else Invalid.
	Decode tensor.DType
}

// Stored returns the dtype in which the elements of a tensor of dtype d are stored.
func (p *Part) Stored(d tensor.DType) tensor.DType {
	if p.Decode != tensor.Invalid {
		return p.Decode
	}
	return d
}

// Whole reports whether the tensor is one run of stored elements in stored order.
func (a *Assembled) Whole() bool {
	return len(a.Parts) == 1 && a.Parts[0].View == nil && a.Parts[0].Decode == tensor.Invalid
}

// Opener makes a Format's Open of a package's own function, which need not close d.
func Opener[F File](read func(d Data) (F, error)) func(d Data) (File, error) {
	return func(d Data) (File, error) {
		f, err := opened(d, read)
		if err != nil {
			return nil, err // a nil F would not be a nil File
		}
		return f, nil
	}
}

// opened reads d, and tells it when the header was read, and where tensors end.
func opened[F File](d Data, read func(d Data) (F, error)) (F, error) {
	f, err := read(d)
	if d, ok := d.(interface{ Rest() }); ok {
		d.Rest()
	}
	if err != nil {
		d.Close()
	} else if d, ok := d.(interface{ TensorsEnd(at []int64) }); ok {
		var ends []int64
		for info := range f.Tensors() {
			if _, offset, ok := f.Lookup(info.Name); ok {
				ends = append(ends, offset+info.Bytes())
			}
		}
		d.TensorsEnd(ends)
	}
	return f, err
}

// OpenFile opens the file at path on the disk with a package's own function, as Opener does.
func OpenFile[F File](path string, read func(d Data) (F, error)) (f F, err error) {
	m, err := NewMapping(path)
	if err != nil {
		return f, err
	}
	return opened(m, read)
}

// File is an open weight file. It is safe for concurrent use.
type File interface {
	Data
	// Tensors yields the tensors in the order of the file.
	Tensors() iter.Seq[tensor.Info]
	// Lookup returns the named tensor and the offset of its first byte in the file.
	Lookup(name string) (info tensor.Info, offset int64, ok bool)
	// Tensor returns a view of the named tensor's mapped bytes, valid until Close.
	Tensor(name string) (tensor.Tensor, error)
	// Stat describes the file beside its tensors.
	Stat() Stat
	// Identify writes bytes that differ between files with other tensors or other offsets,
	// usually the header. It reads no weights.
	Identify(w io.Writer) error
}

// Stat describes a file.
type Stat struct {
	Size     int64             // bytes of the file
	Header   int64             // bytes of the header of a format with the config inside; else 0
	Tensors  int               // tensors in it
	Metadata map[string]string // free-form texts of the header; nil if absent
	Notes    []string          // parts of the file that are not read
}
