package remotetest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// smallestPart is the smallest part of an upload, but for the last one, in bytes.
const smallestPart = 40_000

// upload is an unfinished upload.
type upload struct {
	bucket, key string
	parts       map[int][]byte
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

func (h *Hub) stopped() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last > 0 && h.requests > h.last
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
	body, err := io.ReadAll(r.Body)
	sum := sha256.Sum256(body)
	checksum := r.Header.Get("X-Amz-Checksum-Sha256")
	if err != nil || r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) ||
		checksum != "" && checksum != base64.StdEncoding.EncodeToString(sum[:]) {
		refuseXML(w, http.StatusBadRequest, "BadDigest")
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	status, answer := h.changed(r, bucket, key, body)
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
func (h *Hub) changed(r *http.Request, bucket, key string, body []byte) (status int, answer any) {
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
		h.uploads[id] = &upload{bucket, key, map[int][]byte{}}
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
		os.Remove(h.object(bucket, key))
		return http.StatusNoContent, nil
	}
	return h.put(r, bucket, key, u, body)
}

func (h *Hub) object(bucket, key string) string {
	return filepath.Join(h.Root, bucket, filepath.FromSlash(key))
}

func tagOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// put writes an object or a part, of the body or of another object.
func (h *Hub) put(r *http.Request, bucket, key string, u *upload, body []byte) (status int, answer any) {
	copied := r.Header.Get("X-Amz-Copy-Source")
	if copied != "" {
		from, _ := url.PathUnescape(copied)
		data, err := os.ReadFile(filepath.Join(h.Root, filepath.FromSlash(from)))
		if err != nil {
			return http.StatusNotFound, "NoSuchKey"
		}
		if tag := r.Header.Get("X-Amz-Copy-Source-If-Match"); tag != `"`+h.Replaced[from]+`"` {
			return http.StatusPreconditionFailed, "PreconditionFailed"
		}
		body = data
		var begin, end int
		if n, _ := fmt.Sscanf(r.Header.Get("X-Amz-Copy-Source-Range"), "bytes=%d-%d", &begin, &end); n == 2 {
			body = data[begin : end+1]
		}
	}
	if u != nil {
		number, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		u.parts[number] = body
	} else if _, err := os.Stat(h.object(bucket, key)); err == nil && r.Header.Get("If-None-Match") == "*" {
		return http.StatusPreconditionFailed, "PreconditionFailed"
	} else if err := h.write(bucket, key, body); err != nil {
		return http.StatusInternalServerError, err.Error()
	}
	if copied == "" {
		return http.StatusOK, `"` + tagOf(body) + `"`
	}
	return http.StatusOK, struct {
		XMLName xml.Name `xml:"CopyObjectResult"`
		ETag    string
	}{ETag: tagOf(body)}
}

func (h *Hub) write(bucket, key string, data []byte) error {
	path := h.object(bucket, key)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	h.Replaced["/"+bucket+"/"+key] = tagOf(data)
	return os.WriteFile(path, data, 0o644)
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
	var data []byte
	for i, p := range list.Part {
		part, ok := u.parts[p.PartNumber]
		switch {
		case !ok || strings.Trim(p.ETag, `"`) != tagOf(part) || p.PartNumber != i+1:
			return http.StatusBadRequest, "InvalidPart"
		case i < len(list.Part)-1 && len(part) < smallestPart:
			return http.StatusBadRequest, "EntityTooSmall"
		}
		data = append(data, part...)
	}
	if h.Spoil != "" && strings.HasPrefix(u.key, h.Spoil) {
		data[len(data)-1]++
	}
	if err := h.write(u.bucket, u.key, data); err != nil {
		return http.StatusInternalServerError, err.Error()
	}
	delete(h.uploads, id)
	return http.StatusOK, struct {
		XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
		ETag    string
	}{ETag: tagOf(data)}
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
	type part struct {
		PartNumber     int
		ETag           string
		Size           int
		ChecksumSHA256 string
	}
	page := struct {
		XMLName xml.Name `xml:"ListPartsResult"`
		Part    []part
	}{}
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		sum := sha256.Sum256(u.parts[n])
		page.Part = append(page.Part, part{n, `"` + tagOf(u.parts[n]) + `"`, len(u.parts[n]),
			base64.StdEncoding.EncodeToString(sum[:])})
	}
	return page
}
