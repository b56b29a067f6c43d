// Package engine carries a plan out. Run writes every tensor in tiles under a limit of
// memory, tells a journal what is durable, reads the output again and compares it with the
// source, binds everything in a manifest, and gives the output its name, or its files
// theirs: the target holds a whole checkpoint, or none. Check compares an output with its manifest again.
package engine

import (
	"context"
	"fmt"
	"io/fs"
	"runtime"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Source reads what a plan's segments name. It is safe for concurrent use.
type Source interface {
	// ReadFile fills dst from a weight file, an index in Plan.Sources.
	ReadFile(file int, dst []byte, offset int64) error
	// OpenOther opens a file without weights that is carried along.
	OpenOther(name string) (fs.File, error)
	// Key names the state that the source is in. Two states must not be mixed in one
	// output.
	Key() (string, error)
}

// Settings are how a plan is carried out. They decide no byte of the output's weights.
type Settings struct {
	Memory        int64 // bytes to stay below; 0 is 512 MiB
	Compute       int   // goroutines that cast, hash and compare at once; 0 is GOMAXPROCS
	IO            int   // goroutines that read and write, each a tensor at a time; 0 is DefaultIO
	Unverified    bool  // do not read the output again and compare it with the source
	StartOver     bool  // do not go on from an unfinished output
	Overwrite     bool  // replace a finished output, of whatever plan, that is in the target's place
	AllowOverflow bool  // write numbers that a cast makes infinite

	Tool     string                          // name and version of the program, for the manifest
	Progress func(phase string, n, of int64) // told of bytes as they are done, one call at a time; nil is nobody
	Disk     *disk.Disk                      // nil is the real one
}

// The limits of Settings.Memory.
const (
	DefaultMemory = 512 << 20
	MinMemory     = 64 << 20
)

// DefaultIO is how many tensors are on their way to or from the disk at once.
const DefaultIO = 16

func (s Settings) withDefaults() Settings {
	if s.Memory == 0 {
		s.Memory = DefaultMemory
	}
	if s.Compute == 0 {
		s.Compute = runtime.GOMAXPROCS(0)
	}
	if s.IO == 0 {
		s.IO = DefaultIO
	}
	if s.Progress == nil {
		s.Progress = func(string, int64, int64) {}
	}
	if s.Disk == nil {
		s.Disk = &disk.Disk{}
	}
	return s
}

// Check says what is wrong with the settings.
func (s Settings) Check() error {
	if s.Memory != 0 && s.Memory < MinMemory {
		return fmt.Errorf("%s of memory are too few: %s are the least", text.Bytes(s.Memory), text.Bytes(MinMemory))
	}
	return nil
}

// Result is what Run did.
type Result struct {
	Already  bool         // the target was the finished output of this plan, and still is
	Verified bool         // the output was read again and compared with the source, by this run or the one that wrote it
	Resumed  int64        // bytes that an earlier, interrupted run had written
	Replaced bool         // an older output was in the target's place
	Lost     []LostTensor // tensors with elements that are not finite, or not the source's

	// Uncounted says that an older version wrote the target, and did not count the elements that
	// were rounded.
	Uncounted bool
}

// LostTensor says how many elements of a tensor are not finite, or not the source's.
type LostTensor struct {
	Name string `json:"name"` // of the tensor
	tensor.Loss
}

// OverflowError refuses a cast that makes numbers infinite.
type OverflowError struct {
	Count int64        // elements, of the first part of a tensor that has any
	DType tensor.DType // that they do not fit
}

// Error says how many elements do not fit which dtype.
func (e *OverflowError) Error() string {
	infinite := "infinite"
	if e.DType.Blocked() {
		infinite = "infinite or NaN" // 0 times an infinite scale
	}
	return fmt.Sprintf("at least %s would become %s in %s", text.Plural(int(e.Count), "element"), infinite, e.DType)
}

// Run writes the plan's output to the directory dst, an absolute path. If that does not
// exist, it is assembled in a hidden directory beside it and renamed; a directory that is
// there must be empty, and is filled from a hidden one in it, what makes it a checkpoint
// last; with Overwrite it may hold a finished output and nothing else, and is replaced. An
// interrupted run, however it ended, leaves the hidden directory and a journal; the same
// call goes on from there and gives the same bytes.
//
// If dst is the finished output of the same plan, Run checks it against its manifest. If
// the source may have changed since it was made, or it was not verified and is to be, it is
// compared with the source. With StartOver it is made anew, and replaced.
func Run(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	s = s.withDefaults()
	s.Overwrite = s.Overwrite || s.StartOver && isOutputOf(dst, p)
	if !s.StartOver {
		if r, err := finished(ctx, dst, p, src, s); r != nil || err != nil {
			return r, err
		}
	}
	e, err := newExecution(dst, p, src, s)
	if err != nil {
		return nil, err
	}
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.close()
	if e.published != nil {
		if err := e.publish(); err != nil {
			return nil, err
		}
		return finished(ctx, dst, p, src, s)
	}
	if err := e.journaled(ctx); err != nil {
		return nil, err
	}
	err = e.commit(ctx)
	return &Result{Verified: !s.Unverified, Replaced: e.replaces, Resumed: e.resumed, Lost: e.lost()}, err
}
