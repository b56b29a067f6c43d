package engine

// What the caller hands to Run and gets back.

import (
	"fmt"
	"io/fs"
	"runtime"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Source reads the files that a plan's segments name. It is safe for concurrent use.
type Source interface {
	// ReadFile fills dst from a weight file, an index in Plan.Sources.
	ReadFile(file int, dst []byte, offset int64) error
	// OpenOther opens a file without weights that is copied.
	OpenOther(name string) (fs.File, error)
	// Key names the source's state. One output must not mix two states.
	Key() (string, error)
	// States names the state of each weight file, by the file's name.
	States() (map[string]string, error)
}

// Settings are how a plan is carried out. They decide no byte of the output's weights.
type Settings struct {
	Memory     int64 // limit in bytes; 0 is 512 MiB
	Compute    int   // goroutines that cast, hash and compare at once; 0 is GOMAXPROCS
	IO         int   // goroutines that read and write, each one tensor at a time; 0 is DefaultIO
	Unverified bool  // do not read the output again and compare it with the source
	StartOver  bool  // ignore an unfinished output
	Overwrite  bool  // replace a finished output of any plan, unless its files changed since
	// OverwriteChanged, with Overwrite, replaces a finished output with files that are not as its
	// manifest records them, too.
	OverwriteChanged bool
	Part             plan.Part // write a part of the output, and publish nothing
	Finish           bool      // publish the output that all parts have written
	AllowOverflow    bool      // write numbers that a cast makes infinite
	// Origin is the URL of a source that is not on the disk, for the manifest. Its bytes are read once: a
	// tile is compared with them when it is written, and by its hash when it is read again.
	Origin string

	Client   *remote.Client                  // reads and writes an output in a store; nil is a new one
	Tool     string                          // name and version of the program, for the manifest
	Progress func(phase string, n, of int64) // called, one call at a time, with the bytes done; may be nil
	Disk     *disk.Disk                      // makes the system calls; nil is the real disk
}

// The limits of Settings.Memory.
const (
	DefaultMemory = 512 << 20
	minMemory     = 64 << 20
)

// DefaultIO is the number of tensors in transit to or from the disk at once.
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
	if s.Client == nil {
		s.Client = remote.NewClient()
	}
	if s.Disk == nil {
		s.Disk = &disk.Disk{}
	}
	return s
}

// Check refuses a limit of memory that no conversion can keep, and more parts than there may be.
func (s Settings) Check() error {
	if s.Part.N > plan.MaxParts {
		return fmt.Errorf("part %d of %d: an output has at most %d parts", s.Part.I, s.Part.N, plan.MaxParts)
	}
	if s.Memory != 0 && s.Memory < minMemory {
		return fmt.Errorf("%s of memory is too little: give at least %s", text.Bytes(s.Memory), text.Bytes(minMemory))
	}
	return nil
}

// Result is what Run did.
type Result struct {
	Already  bool         // the target was already the finished output of this plan, or the part done
	Finished bool         // of a part: the target is the finished output of this plan; its bytes were not read
	Verified bool         // this run or the one that wrote the output compared it with the source
	Resumed  int64        // bytes that an interrupted run had written
	Parts    int          // that were joined
	Replaced bool         // an older output was replaced
	Lost     []LostTensor // tensors with elements that changed or are not finite
}

// LostTensor counts the elements of one tensor that changed or are not finite.
type LostTensor struct {
	Name string `json:"name"` // name of the tensor
	tensor.Loss
}

// Interrupted is the error of a cancelled run that leaves an unfinished output.
type Interrupted struct {
	error
	Dir     string // directory of the unfinished output
	Bytes   int64  // bytes on disk that its files take
	Restart bool   // the next run starts over; otherwise it continues without StartOver
}

// Unwrap returns the reason for the interruption.
func (i *Interrupted) Unwrap() error { return i.error }

// OverflowError refuses a cast that makes numbers infinite.
type OverflowError struct {
	Count int64        // elements in the first part of a tensor that overflows
	DType tensor.DType // dtype that they do not fit
}

// Error counts the elements and names the dtype.
func (e *OverflowError) Error() string {
	infinite := "infinite"
	if e.DType.Blocked() {
		infinite = "infinite or NaN" // 0 times an infinite scale
	}
	return fmt.Sprintf("at least %s would become %s in %s", text.Plural(int(e.Count), "element"), infinite, e.DType)
}
