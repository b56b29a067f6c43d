package engine

// What a run asks of the place that its output appears in, and the kinds of it.

import (
	"io"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
)

// output is a plan's output from its first file to its final name, or what one run writes of it.
type output interface {
	// checkReplaceable demands that the target is an output of this program and holds nothing else.
	checkReplaceable() error
	// unfinished reports whether a journal of an unfinished output of any plan is there, and whether some of its
	// files may be in the target already.
	unfinished() (begun, filling bool)
	// begin claims the output and hands the records of earlier runs to apply; they hold unless the output is fresh.
	// It publishes an output that is ended. unchanged refuses to replace files of an older output that changed since
	// they were written.
	begin(apply func(progress.Record), unchanged func() error) (stage, error)
	// start gets the weight files ready to be read and written. readable reports whether tensors can be read before
	// all are written. Otherwise completeFiles, after all of them were written and recorded, has readTile read them.
	start() (readable bool, err error)
	completeFiles() error
	// writeTile and readTile write and read a run of bytes of a weight file, an index in plan.Files.
	writeTile(file int, tile []byte, at int64) error
	readTile(file int, tile []byte, at int64) error
	// record makes the bytes of progress durable, and then the progress itself.
	record(n progress.Unrecorded) error
	// path names a weight file while it is assembled.
	path(file int) string
	// commit writes the other files and publishes the output, or records that a part is done. content returns the
	// function that writes a named file, nil for a weight file. replaced reports whether the target held an older output.
	commit(content func(name string) func(io.Writer) error) (replaced bool, err error)
	// close releases files and the lock; the output stays as it is.
	close()
	// leftovers returns the directory of an unfinished output and the bytes that it takes; "" without one.
	leftovers() (dir string, bytes int64)

	// openFinished opens the weight files of a finished output to read them; close closes them.
	openFinished() error
	// replaceManifest writes the manifest of a finished output anew.
	replaceManifest(write func(io.Writer) error) error
	// removeOrphan removes the journal of a run that died after the output got its name.
	removeOrphan() error
}

// stage is what earlier runs of an output, or of a part, have come to.
type stage int

// The stages.
const (
	fresh   stage = iota // nothing that holds
	resumed              // some of it, by their records
	ended                // the end: the output is published, the part recorded as done
)

// options are how an output is written.
type options struct {
	key       string            // state of the source
	states    map[string]string // states of the source's weight files, by name; for outputs in parts
	part      plan.Part         // the part to write; zero is the whole output
	spans     []plan.Span       // of the part
	startOver bool              // ignore an unfinished output
	overwrite bool              // replace a finished output
	disk      *disk.Disk        // makes the system calls
}

// newOutput is the output of a plan, or a part of it.
func newOutput(t *target, p *plan.Plan, o options) output {
	switch {
	case t.inStore():
		return newStoreOutput(t, p, o)
	case o.part.N > 0:
		return newPartOutput(t, p, o)
	}
	return newDiskOutput(t, p, o)
}
