package engine

// The journal of an unfinished output: lines that can be trusted after a crash,
// because each stands for data that was durable before it was written.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// journal is an open, locked journal.
type journal struct {
	f  *disk.File
	at int64 // where the next line goes
}

// journalHead is the first line: which output it is of.
type journalHead struct {
	Format string `json:"format"` // journalFormat
	Plan   string `json:"plan"`   // hash of the plan
	Key    string `json:"key"`    // of the sources as they were: names, sizes, times
}

const (
	journalFormat = "dsmoe.journal/2"
	journalStart  = `{"format":"` + journalFormat
)

// record is a line. A later line about a tensor replaces an earlier one.
type record struct {
	Ready  bool  `json:"ready,omitempty"` // all files have their size and header
	Void   bool  `json:"void,omitempty"`  // nothing said so far counts: an older output is being replaced
	Tensor int   `json:"t"`               // index in the plan; -1 if it is about none
	Done   int64 `json:"n"`               // bytes written
	// Lost is what casts lost so far. Without it, as in journals of versions that counted no
	// rounded elements, the tensor is written again.
	Lost  *tensor.Loss `json:"losses,omitempty"`
	Proof *proof       `json:"proof,omitempty"` // what is known of a finished tensor

	Published []string `json:"published,omitempty"` // all is complete, and these files are being moved into the target
}

var errBusy = errors.New("another run is writing it")

// lockJournal opens the journal at path and locks it. A journal that was removed
// while this waited is opened anew.
func lockJournal(d *disk.Disk, path string) (*journal, error) {
	for {
		f, err := d.Open(path)
		if err != nil {
			return nil, err
		}
		locked, err := f.TryLock()
		if err != nil || !locked {
			f.Close()
			if err == nil {
				err = errBusy
			}
			return nil, err
		}
		if sameFile(f, path) {
			return &journal{f: f}, nil
		}
		f.Close()
	}
}

func sameFile(f *disk.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// read returns the journal's head, nil if there is none, and hands every whole line
// to apply. What follows the last whole line is cut off by the next append.
func (j *journal) read(apply func(record)) (*journalHead, error) {
	r := bufio.NewReader(io.NewSectionReader(j.f, 0, 1<<62))
	var head *journalHead
	for j.at = 0; ; {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return head, nil
		}
		if err != nil {
			return nil, err
		}
		payload, ok := unseal(line)
		if !ok {
			return head, nil
		}
		if head == nil {
			head = &journalHead{}
			if json.Unmarshal(payload, head) != nil || head.Format != journalFormat {
				return nil, nil
			}
		} else {
			var rec record
			if json.Unmarshal(payload, &rec) != nil {
				return head, nil
			}
			apply(rec)
		}
		j.at += int64(len(line))
	}
}

// isOurs says whether a file without a whole first line can be a journal whose
// first line a crash cut short.
func (j *journal) isOurs() bool {
	b := make([]byte, 9+len(journalStart))
	n, _ := j.f.ReadAt(b, 0)
	b = b[:n]
	check, rest := b[:min(n, 9)], b[min(n, 9):]
	return len(bytes.Trim(b, "\x00")) == 0 ||
		len(bytes.Trim(check, "0123456789abcdef ")) == 0 && bytes.HasPrefix([]byte(journalStart), rest)
}

// begin makes the journal one of the given output, with nothing done.
func (j *journal) begin(head journalHead) error {
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	j.at = 0
	return j.append(head)
}

// writeSize is the bytes of lines that are written at once, if there are so many.
const writeSize = 1 << 20

// append adds lines and makes them durable.
func (j *journal) append(lines ...any) error {
	if err := j.f.Truncate(j.at); err != nil {
		return err
	}
	var b []byte
	var payload bytes.Buffer
	encoder, at := json.NewEncoder(&payload), j.at
	for i, line := range lines {
		payload.Reset()
		if err := encoder.Encode(line); err != nil {
			return err
		}
		if b = seal(b, bytes.TrimSuffix(payload.Bytes(), []byte("\n"))); len(b) < writeSize && i < len(lines)-1 {
			continue
		}
		if _, err := j.f.WriteAt(b, at); err != nil {
			return err
		}
		at, b = at+int64(len(b)), b[:0]
	}
	if err := j.f.Sync(); err != nil {
		return err
	}
	j.at = at
	return nil
}

// seal appends a line that begins with its checksum.
func seal(b, payload []byte) []byte {
	b = fmt.Appendf(b, "%08x ", crc32.ChecksumIEEE(payload))
	return append(append(b, payload...), '\n')
}

func unseal(line []byte) (payload []byte, ok bool) {
	check, payload, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	return payload, ok && string(check) == fmt.Sprintf("%08x", crc32.ChecksumIEEE(payload))
}

// mismatch says why an unfinished conversion cannot go on.
func (h *journalHead) mismatch(want journalHead, p *place) error {
	what := "with other options, or of another source"
	if h.Plan == want.Plan {
		what = "of these files, which were changed since"
	}
	return &checkpoint.Error{Path: p.dst, Problems: []checkpoint.Problem{{Cause: "an unfinished conversion " + what + " is in " + text.Quote(p.dir),
		Hint: "--no-resume starts over"}}}
}
