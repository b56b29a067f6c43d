package remotetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// smallestPart is the smallest part of an upload, but for the last one, in bytes.
const smallestPart = 40_000

// upload is an unfinished upload.
type upload struct {
	bucket, key string
	parts       map[int]part
}

// part is a part of an upload.
type part struct {
	blob Blob
	tag  string
	sum  []byte // SHA-256; nil of a part that was copied
}

// StopAfter has the store refuse all requests after the next n; 0 answers all.
func (h *Hub) StopAfter(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = 0
	if n > 0 {
		h.last = h.requests + n
	}
}

// Uploads returns the number of unfinished uploads.
func (h *Hub) Uploads() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.uploads)
}

// Expire removes the unfinished uploads, as a rule of a bucket may.
func (h *Hub) Expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.uploads)
}

// change answers requests that write, and those about unfinished uploads. A fault lets it happen, and breaks the
// answer off.
func (h *Hub) change(w http.ResponseWriter, r *http.Request, bucket, key string, fault fault) {
	body := make([]byte, max(r.ContentLength, 0)) // clients say the length: they sign the body's hash
	_, err := io.ReadFull(r.Body, body)
	sum := sha256.Sum256(body)
	checksum := r.Header.Get("X-Amz-Checksum-Sha256")
	if err != nil || r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) ||
		checksum != "" && checksum != base64.StdEncoding.EncodeToString(sum[:]) {
		refuseXML(w, http.StatusBadRequest, "BadDigest")
		return
	}
	sent := part{tag: tagOf(sum[:]), sum: sum[:]}
	if r.Method == http.MethodPut {
		if sent.blob, err = h.written.Keep(body); err != nil {
			refuseXML(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	status, answer := h.changed(r, bucket, key, body, sent)
	if status >= 300 {
		refuseXML(w, status, fmt.Sprint(answer))
		return
	}
	if fault == breaksOff {
		panic(http.ErrAbortHandler)
	}
	if tag, ok := answer.(string); ok {
		w.Header().Set("ETag", tag)
		answer = nil
	}
	w.WriteHeader(status)
	if answer != nil {
		_ = xml.NewEncoder(w).Encode(answer)
	}
}

// changed returns a status, and an ETag, the code of an error, or a document.
func (h *Hub) changed(r *http.Request, bucket, key string, body []byte, sent part) (status int, answer any) {
	query, u := r.URL.Query(), h.uploads[r.URL.Query().Get("uploadId")]
	switch {
	case query.Has("uploadId") && (u == nil || u.key != key || u.bucket != bucket):
		return http.StatusNotFound, "NoSuchUpload"
	case r.Method == http.MethodGet && key == "":
		return http.StatusOK, h.listUploads(bucket, query.Get("prefix"))
	case r.Method == http.MethodGet:
		return http.StatusOK, u.list()
	case r.Method == http.MethodPost && query.Has("uploads"):
		h.begun++ // requests run side by side
		id := fmt.Sprint("id", h.begun)
		h.uploads[id] = &upload{bucket, key, map[int]part{}}
		return http.StatusOK, struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			UploadId string
		}{UploadId: id}
	case r.Method == http.MethodPost:
		return h.complete(query.Get("uploadId"), u, body)
	case r.Method == http.MethodDelete && u != nil:
		delete(h.uploads, query.Get("uploadId"))
		return http.StatusNoContent, nil
	case r.Method == http.MethodDelete:
		h.written.Remove(bucket + "/" + key)
		return http.StatusNoContent, nil
	}
	return h.put(r, bucket, key, u, sent)
}

// tagOf makes an ETag of a hash.
func tagOf(sum []byte) string { return hex.EncodeToString(sum[:8]) }

// put writes an object or a part, of the bytes sent or of another object.
func (h *Hub) put(r *http.Request, bucket, key string, u *upload, sent part) (status int, answer any) {
	from, _ := url.PathUnescape(r.Header.Get("X-Amz-Copy-Source"))
	if from != "" {
		name := strings.TrimPrefix(from, "/")
		stat, err := fs.Stat(h.files, name)
		if err != nil {
			return http.StatusNotFound, "NoSuchKey"
		}
		if tag := r.Header.Get("X-Amz-Copy-Source-If-Match"); tag != `"`+h.Replaced[from]+`"` {
			return http.StatusPreconditionFailed, "PreconditionFailed"
		}
		begin, end := int64(0), stat.Size()-1
		fmt.Sscanf(r.Header.Get("X-Amz-Copy-Source-Range"), "bytes=%d-%d", &begin, &end)
		if sent.blob, err = h.written.Range(name, begin, end+1); err != nil {
			return http.StatusInternalServerError, err.Error()
		}
		sum := sha256.Sum256(fmt.Append(nil, h.Replaced[from], begin, end))
		sent.tag, sent.sum = tagOf(sum[:]), nil
	}
	if u != nil {
		number, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		u.parts[number] = sent
	} else if _, err := fs.Stat(h.files, bucket+"/"+key); err == nil && r.Header.Get("If-None-Match") == "*" {
		return http.StatusPreconditionFailed, "PreconditionFailed"
	} else if err := h.write(bucket, key, sent.tag, sent.blob); err != nil {
		return http.StatusInternalServerError, err.Error()
	}
	if from == "" {
		return http.StatusOK, `"` + sent.tag + `"`
	}
	return http.StatusOK, struct {
		XMLName xml.Name `xml:"CopyObjectResult"`
		ETag    string
	}{ETag: sent.tag}
}

func (h *Hub) write(bucket, key, tag string, blobs ...Blob) error {
	h.Replaced["/"+bucket+"/"+key] = tag
	return h.written.Write(bucket+"/"+key, blobs...)
}

// complete makes an object of the parts that a request lists.
func (h *Hub) complete(id string, u *upload, body []byte) (status int, answer any) {
	var list struct {
		Part []struct {
			PartNumber     int
			ETag           string
			ChecksumSHA256 string
		}
	}
	if xml.Unmarshal(body, &list) != nil {
		return http.StatusBadRequest, "MalformedXML"
	}
	blobs, tags := make([]Blob, len(list.Part)), sha256.New()
	for i, p := range list.Part {
		part, ok := u.parts[p.PartNumber]
		switch {
		case !ok || strings.Trim(p.ETag, `"`) != part.tag || p.PartNumber != i+1:
			return http.StatusBadRequest, "InvalidPart"
		case i < len(list.Part)-1 && part.blob.Size() < smallestPart:
			return http.StatusBadRequest, "EntityTooSmall"
		}
		blobs[i] = part.blob
		io.WriteString(tags, part.tag)
	}
	if last := len(blobs) - 1; h.Spoil != "" && strings.HasPrefix(u.key, h.Spoil) {
		data := make([]byte, blobs[last].Size())
		blobs[last].ReadAt(data, 0)
		data[len(data)-1]++
		blobs[last] = bytes.NewReader(data)
	}
	tag := tagOf(tags.Sum(nil))
	if err := h.write(u.bucket, u.key, tag, blobs...); err != nil {
		return http.StatusInternalServerError, err.Error()
	}
	delete(h.uploads, id)
	return http.StatusOK, struct {
		XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
		ETag    string
	}{ETag: tag}
}

func (h *Hub) listUploads(bucket, prefix string) any {
	type pending struct{ Key, UploadId string }
	page := struct {
		XMLName xml.Name `xml:"ListMultipartUploadsResult"`
		Upload  []pending
	}{}
	for _, id := range slices.Sorted(maps.Keys(h.uploads)) {
		if u := h.uploads[id]; u.bucket == bucket && strings.HasPrefix(u.key, prefix) {
			page.Upload = append(page.Upload, pending{u.key, id})
		}
	}
	return page
}

func (u *upload) list() any {
	type listed struct {
		PartNumber     int
		ETag           string
		Size           int64
		ChecksumSHA256 string
	}
	page := struct {
		XMLName xml.Name `xml:"ListPartsResult"`
		Part    []listed
	}{}
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		p := u.parts[n]
		page.Part = append(page.Part, listed{n, `"` + p.tag + `"`, p.blob.Size(), base64.StdEncoding.EncodeToString(p.sum)})
	}
	return page
}
