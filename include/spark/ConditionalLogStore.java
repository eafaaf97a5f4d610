package tidemark;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IOUtils;

/**
 * Delta's log in an S3-compatible store: the store itself decides which of two drivers commits a version.
 *
 * A commit is one conditional put (If-None-Match), visible whole or not at all. Delta's own log store for S3 looks
 * whether the version is there and then puts it, so two drivers may both commit it, and one commit is lost.
 * Janino compiles this file (include/spark/compiled_jars.py), which knows no generics.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final int TRIES = 5;

    private static final long FIRST_PAUSE_MILLISECONDS = 100;

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        byte[] commit = lines(actions);
        FileSystem store = path.getFileSystem(configuration);
        long pause = FIRST_PAUSE_MILLISECONDS;
        for (int attempt = 1;; attempt++) {
            try {
                put(store, path, commit, overwrite.booleanValue());
                return;
            } catch (IOException error) {
                if (!overwrite.booleanValue() && store.exists(path)) {
                    // An answer that was lost, and the put was repeated: the commit that is there is this one.
                    if (Arrays.equals(commit, content(store, path))) {
                        return;
                    }
                    throw new FileAlreadyExistsException(path.toString());
                }
                // A store also refuses one of two puts that are on their way at once, before either is there.
                if (attempt == TRIES) {
                    throw error;
                }
                pause = sleep(pause);
            }
        }
    }

    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return Boolean.FALSE;
    }

    /** Whether the store leaves an object alone that a second conditional put names; tried below a folder. */
    public boolean isExclusive(String folder) throws IOException {
        Path probe = new Path(folder, ".probe-" + UUID.randomUUID());
        FileSystem store = probe.getFileSystem(initHadoopConf());
        try {
            put(store, probe, new byte[] {1}, false);
            put(store, probe, new byte[] {2}, false);
        } catch (IOException error) {
            if (store.exists(probe) && content(store, probe)[0] == 1) {
                return true;
            }
            // The store's answer is 501: it does not know the condition. The class is in a jar that a disk does not need.
            if (error.getClass().getSimpleName().equals("AWSUnsupportedFeatureException")) {
                return false;
            }
            throw error;
        } finally {
            store.delete(probe, false);
        }
        return false;
    }

    private static byte[] lines(Iterator actions) throws IOException {
        ByteArrayOutputStream lines = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            lines.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            lines.write('\n');
        }
        return lines.toByteArray();
    }

    private static void put(FileSystem store, Path path, byte[] commit, boolean overwrite) throws IOException {
        FSDataOutputStreamBuilder builder = store.createFile(path);
        builder.overwrite(true).recursive();
        if (!overwrite) {
            // A file system that does not know this option refuses it.
            builder.must("fs.option.create.conditional.overwrite", true);
        }
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        try {
            stream.write(commit);
        } catch (IOException error) {
            // Closing would make visible what was written so far.
            stream.abort();
            throw error;
        }
        stream.close();
    }

    private static byte[] content(FileSystem store, Path path) throws IOException {
        FSDataInputStream stream = store.open(path);
        try {
            ByteArrayOutputStream content = new ByteArrayOutputStream();
            IOUtils.copyBytes(stream, content, 65536, false);
            return content.toByteArray();
        } finally {
            stream.close();
        }
    }

    private static long sleep(long milliseconds) throws IOException {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        }
        return 2 * milliseconds;
    }
}
