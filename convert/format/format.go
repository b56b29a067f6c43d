// Package format says what a file format of weights is to the rest of convert: a Format,
// a value with the names that its files have and the functions that open and lay out
// one. Each format is a package of its own that makes such a value; package checkpoint
// lists them.
package format

import (
	"io"
	"io/fs"
	"iter"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Format is a file format of weights.
type Format struct {
	Name string // in messages: "safetensors"

	// Recognise says whether a file of that name holds weights in this format.
	Recognise func(file string) bool
	// Single is the file name of a checkpoint in one file.
	Single string
	// Shard returns the name of shard i of n, counted from 0.
	Shard func(i, n int) string
	// ShardBytes is how many bytes of tensors go into one file unless somebody says otherwise;
	// 0 is all.
	ShardBytes int64
	// Index is the file name of the index of a checkpoint in shards.
	Index string
	// IsIndex accepts the name of an index of this format, its variants too.
	IsIndex func(file string) bool
	// Belongs says whether a file may be a part of a checkpoint that was found in its
	// directory, rather than by its own path.
	Belongs func(file string) bool

	// Open opens a file and checks everything but the weights themselves. Errors are of
	// type *Error.
	Open func(path string) (File, error)
	// Layout lays out the tensors of a new file, in the order that the format's own
	// library writes them in. It is nil for a format that is only read.
	Layout func(tensors []tensor.Info, head Head) (Layout, error)

	// Dialect is how the format names and arranges tensors, if not as HuggingFace does.
	Dialect *Dialect
}

// Head is what a file says beside its tensors. The zero value is the format's default.
type Head struct {
	Keys    []byte // as Dialect.Describe encodes them
	Shard   int    // the number of the file, counted from 0
	Shards  int    // how many files there are; 0 is one
	Tensors int    // in all files
}

// Dialect is what a format has that keeps config.json inside its files, and tensors under
// names and in orders of its own.
type Dialect struct {
	// Assemble says what open files, which are all of a checkpoint's, hold in HuggingFace's
	// terms. What is wrong with them is in one error for each problem, of type *Error.
	Assemble func(files []File) (*Assembly, []error)
	// Arrange says which tensors hold the weights of c, given which are to be written by
	// their names in the table; in the order of these. What the format cannot hold, a weight
	// or the model, is an error each, of type *Error without a file.
	// kind is what was asked for, as Description.Type has it.
	Arrange func(c *config.Config, weights []tensor.Info, kind string) ([]Arranged, []error)
	// Types are the words for the mixtures of types that Arrange knows, beside dtypes.
	Types []string
	// Describe encodes what the files say beside their tensors. Notes say what a reader
	// of them should know.
	Describe func(d Description) (keys []byte, notes []string, err error)
	// Consumes says whether a file without weights of that name goes into the keys.
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

// Description is what Describe is told.
type Description struct {
	Config  *config.Config
	Name    string                             // of the model
	Type    string                             // that was asked for: "keep", or a dtype or a mixture
	Tensors []tensor.Info                      // as they are written
	Was     []tensor.DType                     // the dtypes of those that are widened, Invalid for others
	Open    func(name string) (fs.File, error) // opens a file beside the source's weights
}

// Assembly is what the files of a checkpoint hold, in HuggingFace's terms.
type Assembly struct {
	Config  []byte      // config.json
	Tensors []Assembled // those of one file after the other
	Notes   []string    // what of the files is not read
}

// Assembled is a tensor in HuggingFace's terms, and where its elements are.
type Assembled struct {
	tensor.Info
	Parts []Part // one behind the other they are the tensor; there is at least one
	// Was is the dtype that the elements had before they were widened to this one, which
	// lost nothing; Invalid if that is not known.
	Was tensor.DType
}

// Part is a run of a tensor's elements, or a view of one, where a file has them.
type Part struct {
	File   int          // that has them: its index among those of the checkpoint
	Tensor string       // as it is stored
	First  int64        // index of the first element there
	N      int64        // elements from there on that are used
	View   *tensor.View // in which order; nil for that in which they lie
	// Decode is the dtype that the elements are stored in, if they are decoded to F32, the
	// dtype of the tensor, because it is of several, or its blocks are cut apart; else Invalid.
	Decode tensor.DType
}

// Stored returns the dtype in which the elements of a tensor of dtype d are stored.
func (p *Part) Stored(d tensor.DType) tensor.DType {
	if p.Decode != tensor.Invalid {
		return p.Decode
	}
	return d
}

// Whole says whether the tensor is one run of stored elements as they lie.
func (a *Assembled) Whole() bool {
	return len(a.Parts) == 1 && a.Parts[0].View == nil && a.Parts[0].Decode == tensor.Invalid
}

// Opener makes a Format's Open of a package's own Open. A nil F that comes with an error is
// a nil File.
func Opener[F File](open func(path string) (F, error)) func(path string) (File, error) {
	return func(path string) (File, error) {
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		return f, nil
	}
}

// File is an open weight file. It is safe for concurrent use.
type File interface {
	// Tensors yields the tensors in the order of the file.
	Tensors() iter.Seq[tensor.Info]
	// Lookup returns the named tensor and the offset of its first byte in the file.
	Lookup(name string) (info tensor.Info, offset int64, ok bool)
	// Tensor returns a view of the named tensor's mapped bytes, valid until Close. The
	// first view maps the file: what only reads it needs no address space for that.
	Tensor(name string) (tensor.Tensor, error)
	// Stat says what the file is beside its tensors.
	Stat() Stat
	// Identify writes what tells the file from one with other tensors, or with the same
	// at other places: the header, as a rule. It reads no weights.
	Identify(w io.Writer) error
	// WillNeed tells the system that data, a part of a view, is about to be read. It says
	// whether data is of this file.
	WillNeed(data []byte) bool
	// DontNeed tells the system that data is not read for a while, and says as much.
	DontNeed(data []byte) bool
	// Close unmaps the file; views of its tensors must not be used any more.
	Close() error
}

// Stat describes a file.
type Stat struct {
	Size     int64             // bytes of the file
	Tensors  int               // tensors in it
	Metadata map[string]string // free-form texts of the header; nil if there are none
	Notes    []string          // what of the file is not read
}

// Layout is a file before its data is written: every byte of the header and the place of
// every tensor are known.
type Layout interface {
	// Header makes the first bytes of the file.
	Header() []byte
	// Len returns the number of tensors.
	Len() int
	// Info returns tensor i, in the order of their data.
	Info(i int) tensor.Info
	// Offset returns the place of tensor i's first byte in the file.
	Offset(i int) int64
	// Size returns the size of the file in bytes.
	Size() int64
}
