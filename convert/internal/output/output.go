// Package output holds a plan's output from its first file to its final name: on a disk, in parts on a disk that
// machines share, or in an object store. It makes bytes durable and then records them in the journal, and it publishes
// an output whole or not at all.
package output

// What a run asks of an output, and the kinds of outputs.

import (
	"io"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
)

// Output is a plan's output from its first file to its final name, or a part of it.
type Output interface {
	// CheckReplaceable demands that the target is an output of this program and holds nothing else.
	CheckReplaceable() error
	// Unfinished reports whether a journal of an unfinished output of any plan is there, and whether some of its
	// files may be in the target already.
	Unfinished() (unfinished, filling bool)
	// Begin claims the output and hands the records of earlier runs to apply; they hold unless the stage is Fresh.
	// An output that is Ended is published. unchanged refuses to replace files of an older output that changed since
	// they were written.
	Begin(apply func(progress.Record), unchanged func() error) (Stage, error)
	// Start makes the weight files ready to be read and written. readable reports whether tensors can be read before
	// all are written. Otherwise CompleteFiles, after all of them were written and recorded, has ReadTile read them.
	Start() (readable bool, err error)
	CompleteFiles() error
	// WriteTile and ReadTile write and read a run of bytes of a weight file, an index in plan.Files.
	WriteTile(file int, tile []byte, at int64) error
	ReadTile(file int, tile []byte, at int64) error
	// Record makes the bytes of progress durable, and then the progress itself.
	Record(n progress.Unrecorded) error
	// PathOf names a weight file while it is assembled.
	PathOf(file int) string
	// Commit writes the other files and publishes the output, or records that a part is done. content returns the
	// function that writes a named file, nil for a weight file. replaced reports whether the target held an older
	// output.
	Commit(content func(name string) func(io.Writer) error) (replaced bool, err error)
	// Close releases files and the lock; the output stays as it is.
	Close()
	// Leftovers returns the directory of an unfinished output and the bytes that it takes; "" without one.
	Leftovers() (dir string, bytes int64)

	// OpenFinished opens the weight files of a finished output to read them; Close closes them.
	OpenFinished() error
	// ReplaceManifest writes the manifest of a finished output anew.
	ReplaceManifest(write func(io.Writer) error) error
	// RemoveOrphan removes the journal of a run that died after the output got its name.
	RemoveOrphan() error
}

// Stage is what earlier runs of an output, or of a part, have come to.
type Stage int

// The stages.
const (
	Fresh   Stage = iota // nothing that counts
	Resumed              // some bytes, by their records
	Ended                // the end: the output is published, or the part is recorded as done
)

// Options are how an output is written.
type Options struct {
	Key       string            // state of the source
	States    map[string]string // states of the source's weight files, by name; for outputs in parts
	Part      plan.Part         // the part to write; zero is the whole output
	Spans     []plan.Span       // share of the output
	StartOver bool              // ignore an unfinished output
	Overwrite bool              // replace a finished output
	Disk      *disk.Disk        // makes the system calls
}

// New returns the output of a plan, or the part of it that the options name.
func New(t *Target, p *plan.Plan, o Options) Output {
	switch {
	case t.InStore():
		return &storeOutput{storeObjects: newStoreObjects(t, p), Options: o, head: progress.HeadOf(p, o.Key),
			pending: map[int]progress.Record{}}
	case o.Part.N > 0:
		head := progress.HeadOf(p, o.Key)
		head.Options, head.Sources, head.States = p.Options, p.Sources, o.States
		return &partOutput{newDiskOutput(t, p, o), head}
	}
	return newDiskOutput(t, p, o)
}
