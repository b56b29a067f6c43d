package engine

// The journal of an unfinished output. Its lines can be trusted after a crash: the data
// that a line records was durable before the line was written.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
)

// journal is an open, locked journal.
type journal struct {
	f   *disk.File
	end int64 // offset of the next line
}

// journalHead is the first line. It names the output.
type journalHead struct {
	Format string `json:"format"` // journalFormat
	Plan   string `json:"plan"`   // hash of the plan
	Key    string `json:"key"`    // state of the source: Source.Key

	// In the journal of a part:
	Options any               `json:"options,omitempty"` // of the plan
	Sources []plan.Source     `json:"sources,omitempty"` // of the plan
	States  map[string]string `json:"states,omitempty"`  // of the source: Source.States
	Files   map[string]string `json:"files,omitempty"`   // identities of the weight files that it writes to, by name
}

const (
	journalFormat = "dsmoe.journal/3"
	journalStart  = `{"format":"` + journalFormat
)

// proof is the proof of a finished tensor.
type proof struct {
	Hash     string   `json:"hash"`
	Segments []string `json:"segments,omitempty"` // hashes of the sources' elements; nil if they were not hashed
	Compared bool     `json:"compared"`           // the output was read again and agrees with the source
}

// record is a line. A later line about a tensor replaces an earlier one.
type record struct {
	Ready  bool  `json:"ready,omitempty"` // all files have their size and header
	Void   bool  `json:"void,omitempty"`  // earlier lines are void: an older output is being replaced
	Tensor int   `json:"t"`               // index in the plan; -1 for a line about no tensor
	Done   int64 `json:"n"`               // bytes written

	Lost  losses `json:"losses,omitempty"` // of casts so far
	Proof *proof `json:"proof,omitempty"`  // of a finished tensor
	Begun *proof `json:"begun,omitempty"`  // of the bytes written of another, if they were hashed

	Edges []edge `json:"edges,omitempty"` // of a part that is done

	Published []string `json:"published,omitempty"` // the output is complete; these files are being moved into the target

	// Of an output in an object store.
	Run   string   `json:"run,omitempty"`   // names the run that writes the next lines
	ETags []string `json:"etags,omitempty"` // of the complete weight files, as plan.Files
	Older []string `json:"older,omitempty"` // files of the output that Published replaces
}

var errBusy = errors.New("another run is writing it")

// lockJournal opens the journal at path and locks it. If the file was removed before the
// lock was taken, lockJournal opens a new one.
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

// begun reports whether a journal says anything.
func begun(journal string) bool {
	stat, err := os.Lstat(journal)
	return err == nil && stat.Size() > 0
}

func sameFile(f *disk.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// read hands every whole line to apply and returns the journal's head, nil without a whole
// head. The next append cuts off the bytes behind the last whole line.
func (j *journal) read(apply func(record)) (head *journalHead, err error) {
	head, j.end, err = readJournal(j.f, apply)
	return head, err
}

// readJournal is read; end is the offset behind the last whole line. Without apply it reads the head alone.
func readJournal(f io.ReaderAt, apply func(record)) (head *journalHead, end int64, err error) {
	r := bufio.NewReader(io.NewSectionReader(f, 0, 1<<62))
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return head, end, nil
		}
		if err != nil {
			return nil, 0, err
		}
		payload, ok := unseal(line)
		if !ok {
			return head, end, nil
		}
		if head == nil {
			h := &journalHead{}
			if json.Unmarshal(payload, h) != nil || h.Format != journalFormat {
				return nil, 0, nil
			}
			if head = h; apply == nil {
				return head, 0, nil
			}
		} else {
			var rec record
			if json.Unmarshal(payload, &rec) != nil {
				return head, end, nil
			}
			apply(rec)
		}
		end += int64(len(line))
	}
}

// isOurs reports whether a file without a whole first line can be a journal that a crash
// cut short.
func (j *journal) isOurs() bool {
	b := make([]byte, 9+len(journalStart))
	n, _ := j.f.ReadAt(b, 0)
	b = b[:n]
	check, payload := b[:min(n, 9)], b[min(n, 9):]
	return len(bytes.Trim(b, "\x00")) == 0 ||
		len(bytes.Trim(check, "0123456789abcdef ")) == 0 && bytes.HasPrefix([]byte(journalStart), payload)
}

// begin clears the journal and starts it with head.
func (j *journal) begin(head journalHead) error {
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	j.end = 0
	return j.append(head)
}

// writeSize is the least size of a write in bytes, except the last.
const writeSize = 1 << 20

// append adds lines and makes them durable.
func (j *journal) append(lines ...any) error {
	if err := j.f.Truncate(j.end); err != nil {
		return err
	}
	var b []byte
	var payload bytes.Buffer
	encoder, at := json.NewEncoder(&payload), j.end
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
	j.end = at
	return nil
}

// seal appends a line that begins with its checksum.
func seal(b, payload []byte) []byte {
	b = fmt.Appendf(b, "%08x ", crc32.ChecksumIEEE(payload))
	return append(append(b, payload...), '\n')
}

// sealLines returns lines with their checksums.
func sealLines(lines ...any) (b []byte, err error) {
	for _, line := range lines {
		payload, err := json.Marshal(line)
		if err != nil {
			return nil, err
		}
		b = seal(b, payload)
	}
	return b, nil
}

// unsealInto decodes a line, and reports whether it is whole.
func unsealInto(line []byte, value any) bool {
	payload, ok := unseal(line)
	return ok && json.Unmarshal(payload, value) == nil
}

func unseal(line []byte) (payload []byte, ok bool) {
	check, payload, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	return payload, ok && string(check) == fmt.Sprintf("%08x", crc32.ChecksumIEEE(payload))
}
