package tidemark;

import io.delta.storage.HDFSLogStore;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Delta's log on a disk: the disk itself decides which of two drivers commits a version.
 *
 * A commit is a hard link to a finished file, which a disk refuses where the name is taken, also over NFS. Delta's own
 * log store looks whether the version is there and then renames a file, which replaces a commit that came in between.
 * Janino compiles this file (include/spark/compiled_jars.py), which knows no generics.
 */
public final class LinkingLogStore extends HDFSLogStore {
    public LinkingLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        // Without Hadoop's checksums, whose files could not be linked in one step with the commit.
        RawLocalFileSystem disk = (RawLocalFileSystem) FileSystem.getLocal(configuration).getRawFileSystem();
        Path written = createTempPath(path);
        try {
            writeLines(disk, written, actions);
            link(disk.pathToFile(written), disk.pathToFile(path));
        } finally {
            disk.delete(written, false);
        }
    }

    private static void writeLines(FileSystem disk, Path path, Iterator actions) throws IOException {
        OutputStream stream = disk.create(path);
        try {
            while (actions.hasNext()) {
                stream.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
                stream.write('\n');
            }
        } finally {
            stream.close();
        }
    }

    private static void link(File written, File commit) throws IOException {
        // That of a commit which is gone, by a writer with Hadoop's checksums.
        Files.deleteIfExists(new File(commit.getParentFile(), "." + commit.getName() + ".crc").toPath());
        try {
            Files.createLink(commit.toPath(), written.toPath());
        } catch (FileAlreadyExistsException error) {
            // NFS may have lost its answer, and linked again: the commit that is there is this one.
            if (!Files.isSameFile(commit.toPath(), written.toPath())) {
                throw error;
            }
        }
    }
}
